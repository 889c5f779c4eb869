"""forward(capture=...) and embed on tiny models, against a Llama in float64 NumPy."""

import json
import os
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from test_load import byte_vocabulary
from tiny_model import MIXED, tiny_model

import llama3jit
from llama3jit.errors import ContextOverflowError, InvalidArgumentError, UnsupportedError

sys.path.insert(0, str(Path(__file__).parent / "devices"))
from float64_llama import forward

N_CTX = 768
TOLERANCES = {"reference": 1e-5, "cpu": 2e-4}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    return tiny_model(path, formats=MIXED, head_dim=32, biases=True, **byte_vocabulary())


@pytest.fixture(scope="module", params=["reference", "cpu"])
def llm(tiny, request):
    options = {"device": request.param, "n_ctx": N_CTX, "kv_dtype": "f32", "precision": "exact"}
    with llama3jit.load(tiny.path, threads=2, **options) as opened:
        yield opened


def ids_of(count, seed=0):
    return np.random.default_rng(seed).integers(0, 256, count).tolist()


def assert_close(found, expected, device):
    assert found.dtype == np.float32
    assert found.shape == expected.shape
    scale = np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCES[device] * scale)


def test_everything_by_its_name(llm, tiny):
    ids = ids_of(70)
    truth = {}
    forward(tiny, ids, keep=truth)
    found = llm.forward(ids, capture="*")
    assert sorted(found) == sorted(truth)
    for name, values in truth.items():
        assert_close(found[name], values, llm.device)


def test_patterns_choose(llm):
    ids = ids_of(9)
    found = llm.forward(ids, capture=["blk.1.attn_probs", "blk.*.resid", "result_norm", "logits"])
    assert list(found) == [
        "blk.0.resid",
        "blk.1.attn_probs",
        "blk.1.resid",
        "result_norm",
        "logits",
    ]
    np.testing.assert_array_equal(found["logits"], llm.logits(ids))
    assert list(llm.forward(ids)) == ["logits"]
    probs = found["blk.1.attn_probs"]
    assert probs.shape == (4, 9, 9)
    np.testing.assert_allclose(probs.sum(axis=2), 1, rtol=1e-6)
    assert (np.triu(probs, 1) == 0).all()


def test_long_sequences_go_through_in_chunks(llm, tiny):
    ids = ids_of(600, seed=2)
    names = ["blk.1.attn_probs", "blk.0.resid", "blk.1.ffn_gate", "logits"]
    truth = {}
    forward(tiny, ids, keep=truth)
    found = llm.forward(ids, capture=names)
    for name in names:
        assert_close(found[name], truth[name], llm.device)


def test_what_else_runs_changes_nothing_nor_is_changed(llm):
    ids = ids_of(100, seed=3)
    alone = llm.forward(ids, capture=["blk.0.attn_probs", "result_norm"])
    text = llm.generate("abc", max_tokens=60, temperature=0).tokens
    together = []

    def ask():
        together.append(llm.generate("abc", max_tokens=60, temperature=0).tokens)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    found = llm.forward(ids, capture=["blk.0.attn_probs", "result_norm"])
    for thread in threads:
        thread.join()
    for name, values in alone.items():
        np.testing.assert_array_equal(found[name], values)
    assert together == [text] * 3


@pytest.mark.parametrize("kv_dtype", ["f16", "q8_0", "q4_0"])
def test_attention_reads_the_keys_as_the_cache_has_them(tiny, kv_dtype):
    ids = ids_of(80, seed=4)
    truth = {}
    forward(tiny, ids, kv_dtype, keep=truth)
    options = {"device": "cpu", "n_ctx": 128, "threads": 2, "precision": "exact"}
    with llama3jit.load(tiny.path, kv_dtype=kv_dtype, **options) as llm:
        found = llm.forward(ids, capture=["*.attn_probs", "*.attended", "blk.0.q"])
    for name, values in found.items():
        scale = np.abs(truth[name]).max()
        np.testing.assert_allclose(values, truth[name], rtol=0, atol=2e-3 * scale)


def test_a_window(tmp_path):
    path = tmp_path / "window.gguf"
    window = tiny_model(path, llama__attention__sliding_window=8, **byte_vocabulary())
    ids = ids_of(40)
    truth = {}
    forward(window, ids, "f16", keep=truth)
    with llama3jit.load(path, device="reference", n_ctx=64) as llm:
        found = llm.forward(ids, capture="blk.1.attn_probs")["blk.1.attn_probs"]
    np.testing.assert_allclose(found, truth["blk.1.attn_probs"], atol=1e-3)


def test_patterns_that_match_nothing(llm):
    with pytest.raises(
        InvalidArgumentError, match=r"'blk.2.resid', which matches nothing.*to 1: e"
    ):
        llm.forward([1, 2], capture=["logits", "blk.2.resid"])
    for wrong in ("", [5], "attn"):
        with pytest.raises(InvalidArgumentError, match=r"there are.*blk\.N\.attn_probs"):
            llm.forward([1, 2], capture=wrong)
    with pytest.raises(ContextOverflowError):
        llm.forward(ids_of(N_CTX + 1), capture="embd")


def test_devices_without_capture_say_so():
    from scripted import noise, scripted_llama

    with scripted_llama(noise).llama as llm:
        for call in (lambda: llm.forward([1]), lambda: llm.embed("x")):
            with pytest.raises(UnsupportedError, match="device='cpu'"):
                call()


def test_embed_pools_the_last_norm(llm, tiny):
    texts = ["hello", "a longer text, " * 20, "x"]
    rows = []
    for text in texts:
        truth = {}
        forward(tiny, llm.tokenize(text), keep=truth)
        rows.append(truth["result_norm"])
    mean = llm.embed(texts)
    assert mean.shape == (3, 64)
    assert_close(mean, np.array([row.mean(axis=0) for row in rows]), llm.device)
    assert_close(llm.embed(texts, "last"), np.array([row[-1] for row in rows]), llm.device)
    assert_close(llm.embed(texts, "first"), np.array([row[0] for row in rows]), llm.device)
    for found, row in zip(llm.embed(texts, "none"), rows, strict=True):
        assert_close(found, row, llm.device)
    unit = llm.embed(texts, normalize=True)
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(unit * np.linalg.norm(mean, axis=1)[:, None], mean, rtol=1e-4)
    np.testing.assert_array_equal(llm.embed("hello"), mean[0])
    np.testing.assert_array_equal(llm.embed(llm.tokenize("hello")), mean[0])
    np.testing.assert_array_equal(llm.embed([llm.tokenize("hello")]), mean[:1])


def test_many_texts(llm):
    texts = [f"text number {i}" for i in range(40)]
    found = llm.embed(texts)
    np.testing.assert_array_equal(found[37], llm.embed(texts[37]))


def test_create_embedding(llm):
    answer = llm.create_embedding(["hello", "world!"], model="m")
    assert answer["object"] == "list"
    assert answer["model"] == "m"
    assert answer["usage"] == {"prompt_tokens": 13, "total_tokens": 13}
    assert [one["index"] for one in answer["data"]] == [0, 1]
    vectors = np.array([one["embedding"] for one in answer["data"]], np.float32)
    np.testing.assert_array_equal(vectors, llm.embed(["hello", "world!"]))
    assert len(llm.create_embedding("hello")["data"]) == 1


@pytest.mark.parametrize("texts", [[], b"x", 5, [[]], {"a"}, [1.5]])
def test_what_is_no_text(llm, texts):
    with pytest.raises(InvalidArgumentError):
        llm.embed(texts)


def test_wrong_pooling_and_long_texts(llm):
    with pytest.raises(InvalidArgumentError, match="pooling is 'max'"):
        llm.embed("x", pooling="max")
    with pytest.raises(ContextOverflowError):
        llm.embed(["x", "y" * (N_CTX + 1)])


def test_embeddings_are_those_of_llama_cpp():
    """Every ninth component of what llama-cpp-python 0.3.36 gives for SmolLM2-135M-Instruct Q4_1;
    its activations are int8."""
    path = os.environ.get("LLAMA3JIT_TEST_MODEL")
    if not path:
        pytest.skip("LLAMA3JIT_TEST_MODEL names no model file")
    file = Path(__file__).parent / "drop_in/embeddings_llama_cpp.json"
    theirs = json.loads(file.read_text())
    texts = [
        "Hello, world!",
        "Goodbye, world!",
        "The quick brown fox jumps over the lazy dog. " * 6,
    ]
    for precision in ("fast", "exact"):
        with llama3jit.load(path, device="cpu", n_ctx=512, precision=precision) as llm:
            if not str(llm.metadata.get("general.name")).startswith("Smollm2 135M"):
                pytest.skip(f"{path} is another model")
            for pooling, vectors in theirs.items():
                ours = llm.embed(texts, pooling=pooling)[:, ::9].astype(np.float64)
                expected = np.array(vectors)
                lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(expected, axis=1)
                assert ((ours * expected).sum(axis=1) / lengths > 0.998).all()
                np.testing.assert_allclose(
                    np.linalg.norm(ours, axis=1), np.linalg.norm(expected, axis=1), rtol=0.02
                )
