"""Batches that are split into what is decoded and pieces of prompts."""

import numpy as np
import pytest

from llama3jit.devices.cuda.split import split
from llama3jit.model.batch import Piece, make_batch

DECODED = Piece([5], 17, [3, 1])
PROMPT = Piece([7, 8, 9], 4, [2], logits="last")
CHUNK = Piece([10, 11], 0, [4], logits="none")
SCORED = Piece([12, 13], 2, [6], logits="all")


@pytest.mark.parametrize("pieces", [[DECODED], [DECODED, DECODED], [PROMPT, CHUNK]])
def test_what_is_of_one_kind_stays_whole(pieces):
    batch = make_batch(pieces)
    ((part, rows),) = split(batch)
    assert part is batch
    assert rows == slice(None)


def test_the_parts_are_batches_of_their_own_sequences():
    batch = make_batch([PROMPT, DECODED, CHUNK, SCORED, Piece([6], 90, [5, 7, 8])])
    (decoded, first), (prompts, second) = split(batch)
    for part, pieces in (
        (decoded, [DECODED, Piece([6], 90, [5, 7, 8])]),
        (prompts, [PROMPT, CHUNK, SCORED]),
    ):
        expected = make_batch(pieces)
        width = expected.block_tables.shape[1]
        for name in ("tokens", "positions", "seq_of", "starts", "context_lens", "logits_rows"):
            found = getattr(part, name)
            assert found.dtype == np.int32
            assert found.tolist() == getattr(expected, name).tolist(), name
        assert part.block_tables[:, :width].tolist() == expected.block_tables.tolist()
    assert first.tolist() == [1, 4]
    assert second.tolist() == [0, 2, 3]
