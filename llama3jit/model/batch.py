"""The ragged batch: pieces of several sequences, as plain arrays, for one forward pass.

Prefill, a prefill chunk and decode differ only in how many tokens a piece brings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Int32 = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Piece:
    """The next tokens of one sequence.

    `position` is that of the first token; `block_table` names the KV blocks that hold the sequence
    up to and including these tokens; `logits` says for which of the tokens logits are wanted.
    """

    tokens: Sequence[int]
    position: int
    block_table: Sequence[int]
    logits: Literal["none", "last", "all"] = "last"


@dataclass(frozen=True, slots=True)
class Batch:
    """T tokens of S sequences, with R rows of logits asked for; all int32."""

    tokens: Int32  # [T] token ids
    positions: Int32  # [T] position of the token in its sequence
    seq_of: Int32  # [T] index of its sequence in this batch
    starts: Int32  # [S + 1] tokens starts[s]:starts[s + 1] belong to sequence s
    context_lens: Int32  # [S] tokens in the cache after this pass
    block_tables: Int32  # [S, B] KV blocks of each sequence, in order; unused entries are 0
    logits_rows: Int32  # [R] indices into the T tokens, ascending


def make_batch(pieces: Sequence[Piece]) -> Batch:
    """Lay the pieces one after the other. Every piece has at least one token."""
    lengths = [len(piece.tokens) for piece in pieces]
    starts = np.zeros(len(pieces) + 1, np.int32)
    np.cumsum(lengths, out=starts[1:])
    block_tables = np.zeros((len(pieces), max(len(p.block_table) for p in pieces)), np.int32)
    rows: list[int] = []
    for s, piece in enumerate(pieces):
        block_tables[s, : len(piece.block_table)] = piece.block_table
        first = {"all": starts[s], "last": starts[s + 1] - 1, "none": starts[s + 1]}[piece.logits]
        rows.extend(range(first, starts[s + 1]))
    offsets = np.array([piece.position for piece in pieces], np.int32) - starts[:-1]
    return Batch(
        tokens=np.concatenate([np.asarray(piece.tokens, np.int32) for piece in pieces]),
        positions=np.arange(starts[-1], dtype=np.int32) + np.repeat(offsets, lengths),
        seq_of=np.repeat(np.arange(len(pieces), dtype=np.int32), lengths),
        starts=starts,
        context_lens=(offsets + starts[1:]).astype(np.int32),
        block_tables=block_tables,
        logits_rows=np.array(rows, np.int32),
    )
