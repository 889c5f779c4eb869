"""Which tokens go into the next forward pass, and what becomes of its logits.

First come, first served. A sequence is admitted when blocks for its tokens are free, and one more
for each that runs already; what the cache still holds of its first tokens is not computed again.
When the blocks run out, the newest sequence gives its own back and waits; what it then has lost is
computed again later, which changes nothing, as results depend on positions alone. A step takes one
token of every decoding sequence, then fills up with prefill chunks. One thread's business; the
engine's thread owns it.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from llama3jit.devices import Leading
from llama3jit.engine.cache import KvCache
from llama3jit.engine.counters import Counters
from llama3jit.engine.sequence import Finish, FinishReason, SequenceState, TokenEvent
from llama3jit.errors import ContextOverflowError, InvalidArgumentError
from llama3jit.model.batch import Batch, Piece, make_batch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from llama3jit.devices import Runner
    from llama3jit.engine.chooser import Choice
    from llama3jit.engine.snapshot import CacheSnapshot


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
    """The sequences that wait and run on a runner; `prefix_reuse`: what they leave in the cache
    is found again."""

    def __init__(self, runner: Runner, prefix_reuse: bool = True) -> None:
        self.limits = limits = runner.limits
        self.cache = KvCache(runner, prefix_reuse)
        self.pool = self.cache.pool
        self.n_ctx = min(limits.n_ctx, limits.n_blocks * limits.block_tokens)
        self.waiting: deque[SequenceState] = deque()
        self.running: list[SequenceState] = []
        self.done = Counter[str]()  # how many sequences ended, by reason
        self.n_steps = 0
        self.n_computed = 0  # tokens
        self.n_reused = 0  # tokens
        self.n_preempted = 0
        self._most = min(limits.max_sequences, limits.max_tokens, limits.max_logits_rows)
        self._stuck: SequenceState | None = None  # does not fit until blocks are let go of

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing runs."""
        return not self.running and not self.waiting

    @property
    def counters(self) -> Counters:
        """A copy for any thread, which may be of the middle of a step."""
        return Counters(
            steps=self.n_steps,
            tokens_computed=self.n_computed,
            prefix_tokens=self.n_reused,
            preemptions=self.n_preempted,
            finished=self.done["stop"] + self.done["length"],
            cancelled=self.done["cancelled"],
            failed=self.done["error"],
            blocks_free=self.pool.n_free,
            blocks_cached=self.pool.n_cached,
            running=len(self.running),
            waiting=len(self.waiting),
        )

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
        self.n_steps += 1
        self.n_computed += len(step.batch.tokens)
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

    def save_cache(self, tokens: Sequence[int]) -> CacheSnapshot:
        """What the cache holds of these tokens, those of running sequences too."""
        for sequence in self.running:
            self.cache.note(sequence)
        return self.cache.save(tokens)

    def fork(self, parent: SequenceState, child: SequenceState) -> None:
        """Let a child, which has a request and nothing else, go on from where its parent is."""
        if parent.cancelled or (parent not in self.running and parent not in self.waiting):
            raise InvalidArgumentError("the sequence is over: only one under way can be forked")
        if parent.request.visit is not None:
            raise InvalidArgumentError("a sequence that is visited cannot be forked")
        if len(parent.tokens) >= child.capacity:
            raise InvalidArgumentError(
                f"max_tokens is {child.request.params.max_tokens}, and {parent.generated} tokens "
                f"were generated before the fork: expected more"
            )
        child.tokens = list(parent.tokens)
        child.forked = tuple(parent.tokens[len(parent.request.tokens) :])
        child.chooser = parent.chooser.fork(child.request, child.seed)
        n_running = len(self.running)
        held = bool(parent.block_table) and n_running < self._most
        if held and self.cache.fork(parent, child, n_running):
            self._run(child)
        else:
            self.waiting.append(child)

    def finish(
        self, sequence: SequenceState, reason: FinishReason, error: Exception | None = None
    ) -> None:
        """Take a sequence off, free its blocks and tell whoever waits for it."""
        if sequence in self.running:
            self.running.remove(sequence)
            self._release(sequence, keep=error is None)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        self.done[reason] += 1
        sequence.emit(Finish(reason, error))

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self._most:
            sequence = self.waiting[0]
            if sequence is self._stuck:
                return
            for other in self.running:
                self.cache.note(other)
            try:
                if not self.cache.take(sequence, _reusable(sequence), len(self.running)):
                    self._stuck = sequence
                    return
            except Exception as error:
                self.finish(sequence, "error", error)
                continue
            self.waiting.popleft()
            self._run(sequence)

    def _run(self, sequence: SequenceState) -> None:
        """Let a sequence run that has its blocks."""
        self.n_reused += sequence.computed
        if not sequence.admitted:
            sequence.prefix_tokens = min(sequence.computed, len(sequence.request.tokens))
            sequence.admitted = time.perf_counter()
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
                self.cache.extend(sequence)
            else:
                self._preempt(self.running[-1])

    def _preempt(self, sequence: SequenceState) -> None:
        self.running.remove(sequence)
        self._release(sequence, keep=True)
        self.waiting.appendleft(sequence)
        self.n_preempted += 1

    def _release(self, sequence: SequenceState, *, keep: bool) -> None:
        self.cache.release(sequence, keep)
        self._stuck = None

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


def _reusable(sequence: SequenceState) -> int:
    """How many tokens of a sequence need no logits; at least one is always evaluated."""
    most = len(sequence.tokens) - 1
    return most if sequence.request.visit is None else min(most, sequence.visited)
