"""Whole tiny models on every device, against the float64 forward pass of float64_llama.py."""

import numpy as np
import pytest
from driving import ids_of, logits_of, opened
from float64_llama import forward, mean_kl
from tiny_model import MIXED, tiny_model

MODELS = {
    "plain": {},
    "mixed": {"formats": MIXED},
    "tied": {"formats": {"token_embd.weight": "Q8_0", "*": "Q4_1"}, "tied": True, "biases": True},
    "window": {"formats": MIXED, "llama__attention__sliding_window": 20},
    "head_dim 24": {"formats": {"*.ffn_*": "Q4_0"}, "head_dim": 24, "n_head": 4, "n_head_kv": 4},
    "head_dim 80": {
        "head_dim": 80,
        "n_head": 3,
        "n_head_kv": 1,
        "llama__rope__dimension_count": 32,
    },
    "rope_freqs": {"rope_freqs": np.linspace(1, 8, 8)},
    "7 heads to a KV head": {"n_head": 7, "n_head_kv": 1, "n_embd": 112, "vocab": 307},
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {
        name: tiny_model(folder / f"{i}.gguf", seed=i, **options)
        for i, (name, options) in enumerate(MODELS.items())
    }


def worst(found, truth):
    """The largest error, in units of the spread of the logits."""
    assert np.isfinite(found).all()
    return np.abs(found - truth).max() / truth.std()


@pytest.mark.parametrize("name", MODELS)
def test_reference(models, name):
    ids = ids_of(70)
    runner = opened(models[name], "reference", kv_dtype="f32")
    assert worst(logits_of(runner, ids), forward(models[name], ids)) < 1e-6


@pytest.mark.parametrize("name", MODELS)
def test_cpu_exact(models, name):
    ids = ids_of(130)
    runner = opened(models[name], kv_dtype="f32", precision="exact")
    truth = forward(models[name], ids)
    found = logits_of(runner, ids)
    assert worst(found, truth) < 5e-5
    assert mean_kl(truth, found) < 1e-9
    assert (found.argmax(axis=1) == truth.argmax(axis=1)).all()


@pytest.mark.parametrize("name", MODELS)
def test_cpu_exact_with_a_cache_of_halves(models, name):
    ids = ids_of(130)
    runner = opened(models[name], kv_dtype="f16", precision="exact")
    found = logits_of(runner, ids)
    # Where a key lies between two halves, a last bit decides which it becomes.
    assert mean_kl(forward(models[name], ids, "f16"), found) < 1e-6
    assert mean_kl(forward(models[name], ids), found) < 1e-5


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kv_dtype", ["f16", "f32"])
def test_cpu_fast(models, name, kv_dtype):
    ids = ids_of(130)
    runner = opened(models[name], kv_dtype=kv_dtype, precision="fast")
    truth = forward(models[name], ids)
    # int8 activations: steps of 1/127 of the largest of 32, so errors of about 0.5 % a product.
    assert mean_kl(truth, logits_of(runner, ids)) < 5e-3


@pytest.mark.parametrize("kv_dtype", ["f16", "f32"])
def test_the_plan_on_its_njit_faces(models, kv_dtype):
    ids = ids_of(40)
    found = logits_of(opened(models["mixed"], "njit", kv_dtype=kv_dtype), ids)
    truth = forward(models["mixed"], ids, kv_dtype)
    reference = logits_of(opened(models["mixed"], "reference", kv_dtype=kv_dtype), ids)
    assert worst(found, truth) < (5e-5 if kv_dtype == "f32" else 2e-3)
    assert worst(found, reference) < (5e-5 if kv_dtype == "f32" else 2e-3)


QUANTISED = {
    "heads of 32": {"formats": MIXED, "head_dim": 32},
    "heads of 64": {"n_head": 9, "n_head_kv": 3, "head_dim": 64},
    "heads of 96": {"n_head": 3, "n_head_kv": 1, "head_dim": 96, "n_layer": 1},
    "heads of 128": {"head_dim": 128, "llama__attention__sliding_window": 20},
    "heads of 288": {"n_head": 2, "n_head_kv": 1, "head_dim": 288},  # the portable attention
}


@pytest.mark.parametrize("name", QUANTISED)
@pytest.mark.parametrize("kv_dtype", ["q8_0", "q4_0"])
def test_quantised_caches(tmp_path, name, kv_dtype):
    """Every device rounds as llama.cpp does, and the rounding is there."""
    tiny = tiny_model(tmp_path / "m.gguf", seed=4, **QUANTISED[name])
    ids = ids_of(100)
    truth = forward(tiny, ids, kv_dtype)
    exact = forward(tiny, ids)
    loss = mean_kl(exact, truth)
    assert loss > 1e-7
    found = logits_of(opened(tiny, "cpu", kv_dtype=kv_dtype, precision="exact"), ids)
    # Where a value lies between two quants, a last bit decides which it becomes.
    assert mean_kl(truth, found) < 0.1 * loss
    assert mean_kl(exact, found) < 1.5 * loss
    few = ids[:40]
    reference = logits_of(opened(tiny, "reference", kv_dtype=kv_dtype), few)
    assert mean_kl(truth[:40], reference) < 0.1 * loss


def test_the_plan_on_its_njit_faces_with_a_quantised_cache(tmp_path):
    tiny = tiny_model(tmp_path / "m.gguf", formats=MIXED, head_dim=32)
    ids = ids_of(40)
    for kv_dtype in ("q8_0", "q4_0"):
        found = logits_of(opened(tiny, "njit", kv_dtype=kv_dtype), ids)
        loss = mean_kl(forward(tiny, ids), forward(tiny, ids, kv_dtype))
        assert mean_kl(forward(tiny, ids, kv_dtype), found) < 0.1 * loss


def test_rope_freqs_and_window_matter(models, tmp_path):
    """The oracle itself would be blind if these changed nothing."""
    ids = ids_of(70)
    for name, gone in (
        ("rope_freqs", {"rope_freqs": None}),
        ("window", {"llama__attention__sliding_window": 0}),
    ):
        options = MODELS[name] | gone
        other = tiny_model(tmp_path / "o.gguf", seed=list(MODELS).index(name), **options)
        assert worst(forward(other, ids), forward(models[name], ids)) > 0.1


def test_as_transformers_has_it(tmp_path):
    """The same weights in transformers' Llama, whose rotary embedding pairs other components."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    tiny = tiny_model(tmp_path / "t.gguf", n_layer=2, vocab=120, llama__rope__freq_base=5000.0)
    config = transformers.LlamaConfig(
        vocab_size=120,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
        tie_word_embeddings=False,
        attn_implementation="eager",
    )
    theirs = transformers.LlamaForCausalLM(config).double().eval()
    names = {
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    state = {}
    for name, value in tiny.values.items():
        stem = name.removesuffix(".weight")
        if stem.startswith("blk."):
            _, layer, part = stem.split(".")
            if part in ("attn_q", "attn_k"):  # pairs (2i, 2i + 1) to pairs (i, i + half)
                value = value.reshape(-1, 8, 2, 64).swapaxes(1, 2).reshape(-1, 64)
            key = f"model.layers.{layer}.{names[part]}.weight"
        else:
            known = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
            key = f"{known.get(stem, 'lm_head')}.weight"
        state[key] = torch.from_numpy(value.copy())
    theirs.load_state_dict(state)
    ids = ids_of(100, vocab=120)
    with torch.no_grad():
        expected = theirs(torch.tensor([ids])).logits[0].numpy()
    assert worst(forward(tiny, ids), expected) < 5e-5
    found = logits_of(opened(tiny, kv_dtype="f32", precision="exact"), ids)
    assert worst(found, expected) < 5e-5
