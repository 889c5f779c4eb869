"""The same bits whatever else runs: batch, chunks, threads, blocks."""

from itertools import pairwise

import numpy as np
import pytest
from driving import ids_of, logits_of, opened
from tiny_model import MIXED, tiny_model

from llama3jit.model.batch import Piece, make_batch

WAYS = [("fast", "f16"), ("exact", "f32")]
MODELS = {
    "mixed": {"formats": MIXED},
    # Odd shapes, the portable attention, groups of 3, a window.
    "odd": {
        "formats": {"*.ffn_gate.weight": "Q4_0", "*.ffn_up.weight": "Q8_0"},
        "n_head": 3,
        "n_head_kv": 1,
        "head_dim": 24,
        "vocab": 301,
        "llama__attention__sliding_window": 70,
    },
    "heads of 96": {"formats": MIXED, "n_head": 3, "n_head_kv": 1, "head_dim": 96},
    "heads of 64": {"head_dim": 64, "llama__attention__sliding_window": 70},
}
CASES = [
    *((model, *way) for model in ("mixed", "odd") for way in WAYS),
    ("heads of 96", "fast", "q8_0"),
    ("heads of 64", "exact", "q8_0"),
    ("heads of 96", "exact", "q4_0"),
    ("heads of 64", "fast", "q4_0"),
]


@pytest.fixture(scope="module", params=CASES, ids=str)
def opener(request, tmp_path_factory):
    """Opens the model with so many threads; and how many tokens there are."""
    name, precision, kv_dtype = request.param
    tiny = tiny_model(tmp_path_factory.mktemp("m") / "m.gguf", seed=7, **MODELS[name])
    options = {"precision": precision, "kv_dtype": kv_dtype}
    return lambda **more: opened(tiny, **options, **more)


@pytest.fixture(scope="module")
def runner(opener):
    return opener()


@pytest.fixture(scope="module")
def alone(runner):
    """Logits of 130 tokens, in chunks of 32."""
    return logits_of(runner, ids_of(130))


def test_something_comes_out(alone):
    assert np.isfinite(alone).all()
    assert len({row.tobytes() for row in alone}) == 130


@pytest.mark.parametrize("chunk", [1, 7, 31])
def test_chunks(runner, alone, chunk):
    assert np.array_equal(logits_of(runner, ids_of(130), chunk=chunk), alone)


@pytest.mark.parametrize("chunk", [64, 100, 128])
def test_large_chunks(runner, alone, chunk):
    found = logits_of(runner, ids_of(130), chunk=chunk)
    assert np.array_equal(
        found, alone[[chunk - 1, *range(2 * chunk - 1, 130, chunk), 129]][: len(found)]
    )


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads(opener, alone, threads):
    again = opener(threads=threads)
    assert np.array_equal(logits_of(again, ids_of(130)), alone)


@pytest.mark.parametrize("blocks", [(0, 1, 2), (9, 4, 5), (5, 9, 4)])
def test_blocks(runner, alone, blocks):
    assert np.array_equal(logits_of(runner, ids_of(130), blocks=blocks), alone)


def test_last_rows_are_rows_of_all(runner, alone):
    ids = ids_of(130)
    for first, last in pairwise([0, 1, 33, 65, 97, 129, 130]):
        table = (3, 0, 2)[: -(-last // 64)]
        batch = make_batch([Piece(ids[first:last], first, table, "last")])
        assert np.array_equal(runner.forward(batch)[0], alone[last - 1])


def test_no_rows(runner):
    batch = make_batch([Piece(ids_of(5), 0, [1], "none")])
    assert runner.forward(batch).shape[0] == 0


# Prompt, then how many tokens a pass brings, of five sequences that run side by side.
SEQUENCES = [(70, [40, 30]), (3, [1, 1, 1]), (66, [63, 1, 2]), (17, [17]), (25, [1, 23, 1])]


def test_a_ragged_batch_is_its_sequences_alone(runner):
    blocks = [[8, 2], [5], [1, 7], [3], [6]]
    prompts = [ids_of(n, seed=s) for s, (n, _) in enumerate(SEQUENCES)]
    expected = [logits_of(runner, ids, blocks=[9, 0]) for ids in prompts]
    found = [[] for _ in prompts]
    for step in range(3):
        pieces, owners = [], []
        for s, (_, parts) in enumerate(SEQUENCES):
            if step < len(parts):
                first = sum(parts[:step])
                last = first + parts[step]
                table = blocks[s][: -(-last // 64)]
                logits = "all" if parts[step] < 8 else "last"
                pieces.append(Piece(prompts[s][first:last], first, table, logits))
                owners += [(s, t) for t in range(first if logits == "all" else last - 1, last)]
        for (s, t), row in zip(owners, runner.forward(make_batch(pieces)), strict=True):
            found[s].append(t)
            assert np.array_equal(row, expected[s][t]), (s, t)
    assert [tokens[-1] for tokens in found] == [69, 2, 65, 16, 24]
