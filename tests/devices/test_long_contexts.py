"""Contexts of several chunks in whole models: few tokens at a time, whose attention is split among
the threads, give the bits of many at a time, whose is not."""

import numpy as np
import pytest
from driving import ids_of, opened
from float64_llama import forward, mean_kl
from tiny_model import tiny_model

from llama3jit.model.batch import Piece, make_batch
from llama3jit.ops.split_attention import FEW

N_CTX = 2048
LONG = [7, *range(38, 18, -1)]  # the blocks of a sequence of up to 1344 tokens
SHORT = [3]
MODELS = {
    "plain": {"head_dim": 16},
    "head_dim 80, a window": {
        "head_dim": 80,
        "n_head": 3,
        "n_head_kv": 1,
        "llama__attention__sliding_window": 700,
    },
    "portable attention": {"head_dim": 24},  # which has no chunks
}
# Model and type of its cache.
CASES = [
    *((name, kv_dtype) for name in MODELS for kv_dtype in ("f16", "f32")),
    ("heads of 64", "q8_0"),
    ("heads of 96, a window", "q8_0"),
    ("heads of 64", "q4_0"),
    ("heads of 96, a window", "q4_0"),
]
MODELS |= {
    "heads of 64": {"head_dim": 64},
    "heads of 96, a window": {
        "head_dim": 96,
        "n_head": 3,
        "n_head_kv": 1,
        "llama__attention__sliding_window": 700,
    },
}


class Watched:
    """A pool that counts the rows of each pass."""

    def __init__(self, pool):
        self.pool = pool
        self.rows = []

    def run(self, words, n_rows, *arguments):
        self.rows.append(n_rows)
        self.pool.run(words, n_rows, *arguments)


def opener(folder, name):
    """The model, a function that opens it, and whether its attention can be split."""
    tiny = tiny_model(folder / "m.gguf", seed=5, llama__context_length=N_CTX, **MODELS[name])

    def open_it(kv_dtype="f16", **options):
        runner = opened(tiny, kv_dtype=kv_dtype, n_ctx=N_CTX, max_tokens=512, **options)
        runner.pool = Watched(runner.pool)
        return runner

    return tiny, open_it, MODELS[name]["head_dim"] != 24


@pytest.fixture(scope="module", params=["plain", "head_dim 80, a window", "portable attention"])
def model(request, tmp_path_factory):
    return opener(tmp_path_factory.mktemp("m"), request.param)


def piece(ids, first, last, blocks, logits="all"):
    return Piece(ids[first:last], first, blocks[: -(-last // 64)], logits)


def filled(runner, ids, n, blocks=LONG):
    """The runner with the first n tokens in its cache, no pass so short that it is split."""
    for first in range(0, n, 500):
        last = min(n, first + 500)
        assert last - first > FEW
        runner.forward(make_batch([piece(ids, first, last, blocks, "none")]))
    assert len(set(runner.pool.rows)) == 1
    return runner


def is_split(runner):
    """Whether the last pass split its attention: then it had more rows than the first."""
    return runner.pool.rows[-1] > runner.pool.rows[0]


IDS = ids_of(1330, seed=1)


@pytest.fixture(scope="module", params=CASES, ids=str)
def whole(request, tmp_path_factory):
    """Logits of tokens 1290 to 1320 in a pass too large to split, how to open the model, and
    whether it splits."""
    name, kv_dtype = request.param
    _, open_it, splits = opener(tmp_path_factory.mktemp("m"), name)
    runner = filled(open_it(kv_dtype), IDS, 1290)
    logits = runner.forward(make_batch([piece(IDS, 1290, 1320, LONG)])).copy()
    assert not is_split(runner)
    assert np.isfinite(logits).all()
    assert len({row.tobytes() for row in logits}) == 30
    return logits, lambda **options: open_it(kv_dtype, **options), splits


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("step", [1, 3, FEW])
def test_decoding_a_long_context(whole, threads, step):
    """The same tokens by ones, threes or sixteens, with a short sequence beside them."""
    expected, open_it, splits = whole
    runner = filled(open_it(threads=threads), IDS, 1290)
    short, alone, beside = ids_of(40, seed=2), [], []
    runner.forward(make_batch([piece(short, 0, 20, [9], "none")]))
    for i, first in enumerate(range(1290, 1320 - step + 1, step)):
        pieces = [piece(IDS, first, first + step, LONG)]
        if step < FEW:
            pieces = [piece(short, i, i + 1, SHORT), *pieces]
        logits = runner.forward(make_batch(pieces)).copy()
        assert is_split(runner) == splits
        assert np.array_equal(logits[-step:], expected[first - 1290 : first - 1290 + step])
        beside += list(logits[:-step])
    # The short one by itself, by ones, where one chunk is all there is.
    for i in range(len(beside)):
        alone.append(runner.forward(make_batch([piece(short, i, i + 1, [9])]))[0].copy())
        assert not is_split(runner)
    assert np.array_equal(beside, alone)


def test_across_the_edge_of_a_chunk(model):
    """Contexts of 509 to 516 tokens: split from the 513th on, and no bit shows it."""
    _, open_it, splits = model
    runner = filled(open_it(), IDS, 480)
    expected = runner.forward(make_batch([piece(IDS, 480, 512, LONG)])).copy()
    more = runner.forward(make_batch([piece(IDS, 512, 540, LONG)])).copy()
    expected = np.concatenate([expected, more])
    assert not is_split(runner)
    for n in range(508, 516):
        found = runner.forward(make_batch([piece(IDS, n, n + 1, LONG)]))[0]
        assert is_split(runner) == (splits and n >= 512)
        assert np.array_equal(found, expected[n - 480])


def test_few_tokens_and_one_more(model):
    _, open_it, splits = model
    runner = filled(open_it(), IDS, 600)
    expected = runner.forward(make_batch([piece(IDS, 600, 632, LONG)])).copy()
    for n in (FEW - 1, FEW, FEW + 1):
        found = runner.forward(make_batch([piece(IDS, 600, 600 + n, LONG)]))
        assert is_split(runner) == (splits and n <= FEW)
        assert np.array_equal(found, expected[:n])


def test_a_context_shorter_than_a_chunk_is_never_split(tmp_path):
    runner = opened(tiny_model(tmp_path / "m.gguf"), n_ctx=512)
    runner.pool = Watched(runner.pool)
    runner.forward(make_batch([piece(IDS, 0, 64, [1], "none")]))
    runner.forward(make_batch([piece(IDS, 64, 65, [1, 5])]))
    assert not is_split(runner)


def test_a_long_context_is_right(model):
    """Against float64, by single tokens."""
    tiny, open_it, splits = model
    truth = forward(tiny, IDS[:1100])[-6:]
    runner = filled(open_it("f32", precision="exact"), IDS, 1094)
    found = [
        runner.forward(make_batch([piece(IDS, n, n + 1, LONG)]))[0].copy()
        for n in range(1094, 1100)
    ]
    assert is_split(runner) == splits
    assert mean_kl(truth, np.array(found)) < 1e-9


@pytest.mark.parametrize("kv_dtype", ["q8_0", "q4_0"])
def test_a_long_context_in_a_quantised_cache_is_right(tmp_path, kv_dtype):
    tiny, open_it, _ = opener(tmp_path, "heads of 64")
    truth = forward(tiny, IDS[:1100], kv_dtype)[-6:]
    runner = filled(open_it(kv_dtype, precision="exact"), IDS, 1094)
    found = [
        runner.forward(make_batch([piece(IDS, n, n + 1, LONG)]))[0].copy()
        for n in range(1094, 1100)
    ]
    assert is_split(runner)
    assert mean_kl(truth, np.array(found)) < 1e-6
