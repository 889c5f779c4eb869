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
from typing import TYPE_CHECKING

from llama3jit.devices import Leading
from llama3jit.engine.cache import KvCache
from llama3jit.engine.counters import Counters
from llama3jit.engine.layout import Step, lay_out
from llama3jit.engine.sequence import Finish, FinishReason, SequenceState, TokenEvent
from llama3jit.errors import ContextOverflowError, InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from llama3jit.devices import Runner
    from llama3jit.engine.chooser import Choice
    from llama3jit.engine.snapshot import CacheSnapshot


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
        return lay_out(self.running, self.limits)

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
        free = bool(parent.block_table) and n_running < self._most and not self.waiting
        if free and self.cache.fork(parent, child, n_running):
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
