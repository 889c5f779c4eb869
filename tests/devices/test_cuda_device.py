"""Whole tiny models on a GPU: against float64, alone and in a batch, again and again."""

import gc

import numpy as np
import pytest
from driving import ids_of, logits_of, opened
from float64_llama import forward, mean_kl
from test_every_format import MATRICES, SIZES
from test_whole_models import MODELS
from tiny_model import MIXED, tiny_model

from llama3jit.model.batch import Piece, make_batch
from llama3jit.ops.dequantise import FORMATS

pytestmark = pytest.mark.gpu

KINDS = [variant.upper() for variant in FORMATS]
MIXES = [KINDS[first : first + 7] for first in range(0, len(KINDS), 7)]
WAYS = [("cuda portable", {"kv_dtype": "f32"}), ("cuda", {"precision": "fast", "kv_dtype": "f16"})]
# int8 or half activations on the tuned kernels.
BOUND = {"cuda portable": 1e-9, "cuda": 5e-3}


@pytest.fixture(autouse=True)
def collected():
    """Runners of one test give the card back before the next."""
    yield
    gc.collect()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("device", "options"), WAYS, ids=["portable", "tuned"])
def test_whole_models(tmp_path, name, device, options):
    tiny = tiny_model(tmp_path / "m.gguf", seed=1, **MODELS[name])
    ids = ids_of(130)
    runner = opened(tiny, device, **options)
    found, truth = logits_of(runner, ids), forward(tiny, ids)
    runner.close()
    assert np.isfinite(found).all()
    assert mean_kl(truth, found) < BOUND[device]


@pytest.mark.parametrize("mix", MIXES, ids="-".join)
@pytest.mark.parametrize(("device", "options"), WAYS, ids=["portable", "tuned"])
def test_every_format(tmp_path, mix, device, options):
    formats = {f"*.{name}.weight": kind for name, kind in zip(MATRICES, mix, strict=False)}
    formats |= {"token_embd.weight": mix[0], "output.weight": mix[-1]}
    tiny = tiny_model(tmp_path / "m.gguf", formats=formats, seed=3, **SIZES)
    ids = ids_of(70)
    truth = forward(tiny, ids)
    assert truth.std() > 0.1, "logits too flat to tell right from wrong"
    runner = opened(tiny, device, **options)
    found = logits_of(runner, ids)
    runner.close()
    assert mean_kl(truth, found) < BOUND[device]


@pytest.mark.parametrize(("device", "options"), WAYS, ids=["portable", "tuned"])
def test_as_the_reference_interpreter_has_it(tmp_path, device, options):
    tiny = tiny_model(tmp_path / "m.gguf", formats=MIXED, seed=5)
    ids = ids_of(100)
    runner = opened(tiny, device, **options)
    found = logits_of(runner, ids)
    runner.close()
    expected = logits_of(opened(tiny, "reference", kv_dtype=options["kv_dtype"]), ids)
    assert mean_kl(expected, found) < BOUND[device]


@pytest.mark.parametrize("kv_dtype", ["q8_0", "q4_0"])
@pytest.mark.parametrize("device", ["cuda portable", "cuda"])
def test_a_quantised_cache(tmp_path, device, kv_dtype):
    sizes = {"n_embd": 256, "n_ff": 512, "n_head": 4, "n_head_kv": 2, "head_dim": 64}
    tiny = tiny_model(tmp_path / "m.gguf", formats={"*": "Q8_0"}, seed=5, **sizes)
    ids = ids_of(100)
    runner = opened(tiny, device, kv_dtype=kv_dtype)
    found = logits_of(runner, ids)
    runner.close()
    truth = logits_of(opened(tiny, "reference", kv_dtype="f32"), ids)
    loss = mean_kl(truth, logits_of(opened(tiny, "reference", kv_dtype=kv_dtype), ids))
    assert mean_kl(truth, found) < 1.5 * loss + BOUND[device]


def test_the_largest_logits(runner):
    batch = make_batch([Piece(ids_of(n, seed=n), 0, [s]) for s, n in enumerate((3, 20, 7))])
    rows = runner.forward(batch).copy()
    found = runner.leading(batch) if runner.n_leading else None
    order = np.argsort(-rows, axis=1, kind="stable")[:, : runner.n_leading]
    assert found is None or np.array_equal(found.ids, order)
    assert (found is None) == (runner.n_leading == 0)


@pytest.fixture(params=WAYS, ids=["portable", "tuned"])
def runner(request, tmp_path):
    device, options = request.param
    tiny = tiny_model(tmp_path / "m.gguf", formats=MIXED, seed=7)
    runner = opened(tiny, device, **options)
    yield runner
    runner.close()


def greedy(runner, prompts, n, blocks, *, prefill_alone=False):
    """n likeliest tokens after each prompt, all sequences side by side."""
    tokens = [list(prompt) for prompt in prompts]
    done = [0] * len(prompts)
    if prefill_alone:
        for i, (ids, table) in enumerate(zip(tokens, blocks, strict=True)):
            if len(ids) > 1:
                runner.forward(make_batch([Piece(ids[:-1], 0, table, "none")]))
                done[i] = len(ids) - 1
    for _ in range(n):
        pieces = [
            Piece(ids[at:], at, table[: -(-len(ids) // 64)])
            for ids, at, table in zip(tokens, done, blocks, strict=True)
        ]
        logits = runner.forward(make_batch(pieces))
        done = [len(ids) for ids in tokens]
        for ids, row in zip(tokens, logits, strict=True):
            ids.append(int(row.argmax()))
    return [ids[len(prompt) :] for ids, prompt in zip(tokens, prompts, strict=True)]


def test_the_same_text_alone_and_in_a_batch(request, runner):
    """Tuned kernels round activations in one way for up to 8 tokens and in another for more, so
    there prompts are read alone in both cases."""
    alone = "tuned" in request.node.name
    prompts = [ids_of(n, seed=n) for n in (3, 21, 17, 20, 1)]
    blocks = [[s, 5 + s] for s in range(5)]
    together = greedy(runner, prompts, 30, blocks, prefill_alone=alone)
    for prompt, tokens in zip(prompts, together, strict=True):
        assert greedy(runner, [prompt], 30, [[9, 0]], prefill_alone=alone) == [tokens]


def test_a_token_of_each_of_several_sequences_has_the_bits_of_each_alone(runner):
    """Up to 8 of them."""
    prompts = [ids_of(n, seed=n) for n in (3, 21, 17, 20, 2, 9, 30)]
    for s, ids in enumerate(prompts):
        runner.forward(make_batch([Piece(ids[:-1], 0, [s], "none")]))
    pieces = [Piece(ids[-1:], len(ids) - 1, [s]) for s, ids in enumerate(prompts)]
    together = runner.forward(make_batch(pieces)).copy()
    for piece, row in zip(pieces, together, strict=True):
        assert np.array_equal(runner.forward(make_batch([piece]))[0], row)


def test_passes_in_threads_that_come_and_go(runner):
    """Each has to make the device its own."""
    from concurrent.futures import ThreadPoolExecutor

    batch = make_batch([Piece(ids_of(5), 0, [1])])
    expected = runner.forward(batch).copy()
    for _ in range(4):
        with ThreadPoolExecutor(1) as pool:
            assert np.array_equal(pool.submit(runner.forward, batch).result(), expected)


def test_200_repeats_of_one_step_give_equal_bits(runner):
    ids = ids_of(100)
    first = logits_of(runner, ids)
    step = make_batch([Piece(ids[99:100], 99, (3, 0)), Piece(ids[:20], 0, [7])])
    expected = runner.forward(step).copy()
    assert np.isfinite(expected).all()
    for _ in range(200):
        assert np.array_equal(runner.forward(step), expected)
    assert np.array_equal(logits_of(runner, ids), first)


def test_an_explicit_device_that_is_not_there(tmp_path):
    from llama3jit.errors import DeviceError

    tiny = tiny_model(tmp_path / "m.gguf")
    with pytest.raises(DeviceError, match="there is no device cuda:99"):
        opened(tiny, "cuda:99")


def test_a_context_that_does_not_fit(tmp_path):
    from llama3jit.errors import MemoryLimitError

    tiny = tiny_model(tmp_path / "m.gguf", n_layer=2)
    with pytest.raises(MemoryLimitError, match=r"n_ctx=\d+ in place of 2000000000 would fit"):
        opened(tiny, "cuda", n_ctx=2_000_000_000)
    assert opened(tiny, "cuda").forward(make_batch([Piece([1, 2], 0, [0])])).shape == (1, 300)
