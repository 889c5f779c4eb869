"""Pieces to a ragged batch."""

import numpy as np

from llama3jit.model.batch import Piece, make_batch


def test_pieces_lie_one_after_the_other():
    batch = make_batch(
        [
            Piece([7, 8, 9], 0, [4], "all"),
            Piece([5], 130, [2, 0, 9], "last"),
            Piece([1, 2], 63, [3, 1], "none"),
            Piece([6, 6], 2, [5], "last"),
        ]
    )
    assert batch.tokens.tolist() == [7, 8, 9, 5, 1, 2, 6, 6]
    assert batch.positions.tolist() == [0, 1, 2, 130, 63, 64, 2, 3]
    assert batch.seq_of.tolist() == [0, 0, 0, 1, 2, 2, 3, 3]
    assert batch.starts.tolist() == [0, 3, 4, 6, 8]
    assert batch.context_lens.tolist() == [3, 131, 65, 4]
    assert batch.block_tables.tolist() == [[4, 0, 0], [2, 0, 9], [3, 1, 0], [5, 0, 0]]
    assert batch.logits_rows.tolist() == [0, 1, 2, 3, 7]
    for name in batch.__slots__:
        assert getattr(batch, name).dtype == np.int32, name


def test_no_logits_at_all():
    batch = make_batch([Piece([1], 0, [0], "none")])
    assert batch.logits_rows.shape == (0,)
