"""Which tokens of the running sequences go into a forward pass: one of each that decodes, then
prefill chunks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from llama3jit.model.batch import Batch, Piece, make_batch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from llama3jit.devices import Limits
    from llama3jit.engine.sequence import SequenceState


@dataclass(frozen=True, slots=True)
class Step:
    """One forward pass: `parts` says how many tokens and rows of logits each sequence has in it."""

    batch: Batch
    parts: list[tuple[SequenceState, int, int]]

    def is_led(self, n_leading: int) -> bool:
        """Whether the n_leading largest logits of each row are enough for all."""
        return all(
            sequence.request.visit is None and sequence.chooser.is_led(n_leading)
            for sequence, _, n_rows in self.parts
            if n_rows
        )


def lay_out(running: Sequence[SequenceState], limits: Limits) -> Step:
    """A pass over sequences that have blocks for all their tokens, oldest first."""
    if all(s.pending == 1 and s.request.visit is None for s in running):
        return Step(_decode_batch(running, limits.block_tokens), [(s, 1, 1) for s in running])
    parts, pieces = [], []
    for sequence, piece in _pieces(running, limits):
        rows = {"none": 0, "last": 1, "all": len(piece.tokens)}[piece.logits]
        parts.append((sequence, len(piece.tokens), rows))
        pieces.append(piece)
    return Step(make_batch(pieces), parts)


def _pieces(
    running: Sequence[SequenceState], limits: Limits
) -> Iterator[tuple[SequenceState, Piece]]:
    """Decoding sequences first, one token each, then prefill chunks in order of arrival."""
    decoding = [s for s in running if s.pending == 1 and s.request.visit is None]
    filling = [s for s in running if s.pending > 1 or s.request.visit is not None]
    tokens_left = limits.max_tokens
    rows_left = limits.max_logits_rows
    for sequence in decoding + filling:
        n, logits = sequence.pending, "last"
        if sequence.request.visit is not None:
            unseen = sequence.visited - sequence.computed
            n, logits = (min(n, unseen), "none") if unseen > 0 else (min(n, rows_left), "all")
        if n > tokens_left:
            n, logits = tokens_left, "none" if logits == "last" else logits
        rows = {"none": 0, "last": 1, "all": n}[logits]
        if n == 0 or rows > rows_left:
            continue
        tokens_left -= n
        rows_left -= rows
        yield sequence, _piece(sequence, n, logits, limits.block_tokens)


def _piece(sequence: SequenceState, n: int, logits: str, block_tokens: int) -> Piece:
    end = sequence.computed + n
    return Piece(
        tokens=sequence.tokens[sequence.computed : end],
        position=sequence.computed,
        block_table=sequence.block_table[: -(-end // block_tokens)],
        logits=logits,  # type: ignore[arg-type]
    )


def _decode_batch(running: Sequence[SequenceState], block_tokens: int) -> Batch:
    """What make_batch makes of one token of every running sequence, at less cost."""
    lengths = [len(s.tokens) for s in running]
    count = len(lengths)
    width = -(-max(lengths) // block_tokens)
    if count == 1:
        tables = running[0].block_row[:, :width]
    else:
        tables = np.zeros((count, width), np.int32)
        for table, sequence, length in zip(tables, running, lengths, strict=True):
            used = -(-length // block_tokens)
            table[:used] = sequence.block_row[0, :used]
    context_lens = np.array(lengths, np.int32)
    starts = np.arange(count + 1, dtype=np.int32)
    return Batch(
        tokens=np.array([s.tokens[-1] for s in running], np.int32),
        positions=context_lens - np.int32(1),
        seq_of=starts[:-1],
        starts=starts,
        context_lens=context_lens,
        block_tables=tables,
        logits_rows=starts[:-1],
    )
