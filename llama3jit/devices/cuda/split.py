"""A batch in two: what is decoded, a token of each sequence, and pieces of prompts.

Kernels for the one round activations to int8 and those for the other to halves. Each token goes the
same way whatever else is in the batch, so that a sequence has one text.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from llama3jit.model.batch import Batch

Indices = NDArray[np.intp]


def split(batch: Batch) -> list[tuple[Batch, Indices | slice]]:
    """The parts of a batch, and which of its rows of logits each has."""
    lengths = np.diff(batch.starts)
    single = lengths == 1
    if single.all() or not single.any():
        return [(batch, slice(None))]
    return [_of_sequences(batch, np.flatnonzero(some)) for some in (single, ~single)]


def _of_sequences(batch: Batch, sequences: Indices) -> tuple[Batch, Indices]:
    lengths = np.diff(batch.starts)[sequences]
    starts = np.zeros(len(sequences) + 1, np.int32)
    np.cumsum(lengths, out=starts[1:])
    moved = np.full(len(batch.context_lens), -1, np.int32)
    moved[sequences] = np.arange(len(sequences), dtype=np.int32)
    tokens = np.flatnonzero(moved[batch.seq_of] >= 0)
    place = np.full(len(batch.tokens), -1, np.int32)
    place[tokens] = np.arange(len(tokens), dtype=np.int32)
    rows = np.flatnonzero(place[batch.logits_rows] >= 0)
    context_lens = batch.context_lens[sequences]
    part = Batch(
        tokens=batch.tokens[tokens],
        positions=batch.positions[tokens],
        seq_of=moved[batch.seq_of[tokens]],
        starts=starts,
        context_lens=context_lens,
        block_tables=batch.block_tables[sequences],
        logits_rows=place[batch.logits_rows[rows]],
    )
    return part, rows
