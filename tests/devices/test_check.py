"""A batch that does not fit is refused before a kernel sees it."""

import dataclasses

import numpy as np
import pytest
from driving import opened
from tiny_model import tiny_model

from llama3jit.errors import InvalidArgumentError
from llama3jit.model.batch import Piece, make_batch


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    """192 tokens of context, 4 sequences, 16 tokens a pass; 6 blocks of 64."""
    tiny = tiny_model(tmp_path_factory.mktemp("m") / "m.gguf")
    return opened(tiny, max_sequences=4, max_tokens=16, kv_dtype="f32", precision="exact")


def pieces(n, tokens=1, logits="last"):
    return [Piece([0] * tokens, 0, [s], logits) for s in range(n)]


def changed(**arrays):
    batch = make_batch([Piece([1, 2, 3], 60, [0, 1], "all")])
    arrays = {name: np.array(value, np.int32) for name, value in arrays.items()}
    return dataclasses.replace(batch, **arrays)


REFUSED = {
    "too many tokens": (make_batch(pieces(1, 17)), "17 tokens; this device takes 16"),
    "too many sequences": (make_batch(pieces(5)), "5 sequences; this device takes 4"),
    "context": (make_batch([Piece([1, 2], 191, [0, 1, 2, 3])]), "193 tokens of context"),
    "token": (changed(tokens=[1, 300, 3]), "token 300 is not in 0 to 299"),
    "negative token": (changed(tokens=[1, -1, 3]), "token -1 is not in 0 to 299"),
    "position": (changed(positions=[0, 1, 192]), "position 192 is not in 0 to 191"),
    "negative position": (changed(positions=[-1, 0, 1]), "position -1 is not in"),
    "sequence": (changed(seq_of=[0, 0, 1]), "sequence 1 is not in 0 to 0"),
    "block": (changed(block_tables=[[0, 6]]), "KV block 6 is not in 0 to 5"),
    "negative block": (changed(block_tables=[[0, -1]]), "KV block -1 is not in"),
    "row": (changed(logits_rows=[0, 3]), "row of logits 3 is not in 0 to 2"),
    "rows": (changed(logits_rows=[0] * 17), "17 rows of logits; this device takes 16"),
    "far position": (changed(positions=[60, 61, 130]), "hold 128 tokens, fewer than the 131"),
    "wide table": (changed(block_tables=[[0, 1, 2, 3]]), "4 blocks; this device takes 3"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(runner, name):
    batch, message = REFUSED[name]
    with pytest.raises(InvalidArgumentError, match=message):
        runner.forward(batch)


def test_a_table_that_is_too_short(runner):
    with pytest.raises(InvalidArgumentError, match="blocks hold 64 tokens, fewer than the 66"):
        runner.forward(make_batch([Piece([1, 2, 3], 63, [0])]))


def test_the_largest_batch_runs(runner):
    assert runner.forward(make_batch(pieces(4, 4, "all"))).shape == (16, 300)
    batch = make_batch([Piece([299], 191, [5, 4, 3])])
    assert np.isfinite(runner.forward(batch)).all()
