"""Which tokens go into the next forward pass, and what becomes of its logits.

First come, first served. A sequence is admitted when blocks for its tokens are free, and one more
for each that runs already. When the blocks run out, the newest sequence gives its own back and
waits; its tokens are computed again later, which changes nothing, as results depend on positions
alone. A step takes one token of every decoding sequence, then fills up with prefill chunks. One
thread's business; the engine's thread owns it.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from llama3jit.devices import Leading
from llama3jit.engine.kv import BlockPool
from llama3jit.engine.sequence import Finish, FinishReason, SequenceState, TokenEvent
from llama3jit.errors import ContextOverflowError, InvalidArgumentError
from llama3jit.model.batch import Batch, Piece, make_batch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from llama3jit.devices import Limits
    from llama3jit.engine.chooser import Choice


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


class Scheduler:
    """The sequences that wait and run on a device of these limits."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.pool = BlockPool(limits.n_blocks)
        self.n_ctx = min(limits.n_ctx, limits.n_blocks * limits.block_tokens)
        self.waiting: deque[SequenceState] = deque()
        self.running: list[SequenceState] = []
        self._most = min(limits.max_sequences, limits.max_tokens, limits.max_logits_rows)

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing runs."""
        return not self.running and not self.waiting

    def capacity_for(self, prompt_tokens: int, max_tokens: int | None, visited: bool) -> int:
        """Tokens that a sequence may hold in all. Raises ContextOverflowError if its prompt leaves
        no room for one more, or, when it is `visited` and not generated from, for itself."""
        if prompt_tokens == 0:
            raise InvalidArgumentError("the prompt has no tokens: expected at least one")
        if prompt_tokens > self.n_ctx - (not visited):
            more = "" if visited else f", max_tokens is {max_tokens or 'not set'}"
            raise ContextOverflowError(
                f"the prompt has {prompt_tokens} tokens{more}, and the context holds {self.n_ctx} "
                f"tokens, generated ones included: shorten the prompt or load with a larger n_ctx"
            )
        if visited:
            return prompt_tokens
        return self.n_ctx if max_tokens is None else min(self.n_ctx, prompt_tokens + max_tokens)

    def next_step(self) -> Step | None:
        """Drop what was cancelled, admit what fits, and lay out a forward pass; None if idle."""
        for sequence in [s for s in (*self.waiting, *self.running) if s.cancelled]:
            self.finish(sequence, "cancelled")
        self._admit()
        self._extend_tables()
        if not self.running:
            return None
        if all(s.pending == 1 and s.request.visit is None for s in self.running):
            return Step(self._decode_batch(), [(s, 1, 1) for s in self.running])
        parts, pieces = [], []
        for sequence, piece in self._pieces():
            rows = {"none": 0, "last": 1, "all": len(piece.tokens)}[piece.logits]
            parts.append((sequence, len(piece.tokens), rows))
            pieces.append(piece)
        return Step(make_batch(pieces), parts)

    def apply(self, step: Step, logits: NDArray[np.float32] | Leading) -> None:
        """Account for a pass that was run: `logits` [R, vocab_size] as its batch asked for, or the
        largest of each row if they are enough."""
        row = 0
        for sequence, n_tokens, n_rows in step.parts:
            first = sequence.computed + n_tokens - n_rows
            sequence.computed += n_tokens
            at, row = row, row + n_rows
            if sequence.cancelled:
                continue
            try:
                if isinstance(logits, Leading):
                    if n_rows:
                        led = logits.ids[at], logits.logits[at]
                        choice = sequence.chooser.choose_led(*led, sequence.generated)
                        self._append(sequence, choice)
                elif sequence.request.visit is not None:
                    self._visit(sequence, first, logits[at:row])
                elif n_rows:
                    so_far = sequence.tokens, sequence.generated
                    self._append(sequence, sequence.chooser.choose(logits[at], *so_far))
            except Exception as error:
                self.finish(sequence, "error", error)

    def finish(
        self, sequence: SequenceState, reason: FinishReason, error: Exception | None = None
    ) -> None:
        """Take a sequence off, free its blocks and tell whoever waits for it."""
        if sequence in self.running:
            self.running.remove(sequence)
            self.pool.free(sequence.block_table)
            sequence.block_table = []
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        sequence.emit(Finish(reason, error))

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self._most:
            sequence = self.waiting[0]
            count = self._blocks_for(len(sequence.tokens))
            spare = self.pool.n_free - count
            if spare < 0 or (self.running and spare < len(self.running)):
                return
            self.waiting.popleft()
            sequence.block_table = self.pool.allocate(count)
            sequence.block_row = np.zeros((1, self._blocks_for(sequence.capacity)), np.int32)
            sequence.block_row[0, :count] = sequence.block_table
            sequence.admitted = sequence.admitted or time.perf_counter()
            self.running.append(sequence)

    def _extend_tables(self) -> None:
        """Give each sequence, oldest first, the block that its newest token needs."""
        i = 0
        while i < len(self.running):
            sequence = self.running[i]
            held = len(sequence.block_table)
            if len(sequence.tokens) <= held * self.limits.block_tokens:
                i += 1
            elif self.pool.n_free:
                sequence.block_table += self.pool.allocate(1)
                sequence.block_row[0, held] = sequence.block_table[held]
            else:
                self._preempt(self.running[-1])

    def _preempt(self, sequence: SequenceState) -> None:
        self.running.remove(sequence)
        self.pool.free(sequence.block_table)
        sequence.block_table = []
        sequence.computed = 0
        self.waiting.appendleft(sequence)

    def _blocks_for(self, n_tokens: int) -> int:
        return -(-n_tokens // self.limits.block_tokens)

    def _pieces(self) -> Iterator[tuple[SequenceState, Piece]]:
        """Decoding sequences first, one token each, then prefill chunks in order of arrival."""
        decoding = [s for s in self.running if s.pending == 1 and s.request.visit is None]
        filling = [s for s in self.running if s.pending > 1 or s.request.visit is not None]
        tokens_left = self.limits.max_tokens
        rows_left = self.limits.max_logits_rows
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
            yield sequence, self._piece(sequence, n, logits)

    def _piece(self, sequence: SequenceState, n: int, logits: str) -> Piece:
        end = sequence.computed + n
        return Piece(
            tokens=sequence.tokens[sequence.computed : end],
            position=sequence.computed,
            block_table=sequence.block_table[: self._blocks_for(end)],
            logits=logits,  # type: ignore[arg-type]
        )

    def _decode_batch(self) -> Batch:
        """What make_batch makes of one token of every running sequence, at less cost."""
        lengths = [len(s.tokens) for s in self.running]
        count = len(lengths)
        width = self._blocks_for(max(lengths))
        if count == 1:
            tables = self.running[0].block_row[:, :width]
        else:
            tables = np.zeros((count, width), np.int32)
            for table, sequence, length in zip(tables, self.running, lengths, strict=True):
                used = self._blocks_for(length)
                table[:used] = sequence.block_row[0, :used]
        context_lens = np.array(lengths, np.int32)
        starts = np.arange(count + 1, dtype=np.int32)
        return Batch(
            tokens=np.array([s.tokens[-1] for s in self.running], np.int32),
            positions=context_lens - np.int32(1),
            seq_of=starts[:-1],
            starts=starts,
            context_lens=context_lens,
            block_tables=tables,
            logits_rows=starts[:-1],
        )

    def _append(self, sequence: SequenceState, choice: Choice) -> None:
        token = choice.token
        if token in sequence.request.end_ids:
            self.finish(sequence, "stop")
            return
        sequence.tokens.append(token)
        now = time.perf_counter()
        sequence.emit(TokenEvent(token, choice.logprob, now, choice.top_logprobs))
        if choice.ends:
            self.finish(sequence, "stop")
        elif len(sequence.tokens) >= sequence.capacity:
            self.finish(sequence, "length")

    def _visit(self, sequence: SequenceState, first: int, rows: NDArray[np.float32]) -> None:
        assert sequence.request.visit is not None
        if len(rows):
            sequence.request.visit(first, rows)
            sequence.visited = first + len(rows)
        if sequence.pending == 0:
            self.finish(sequence, "stop")
