"""The engine, and the handles by which threads ask it for tokens."""

from __future__ import annotations

import atexit
import secrets
import time
import weakref
from dataclasses import replace
from queue import Empty
from typing import TYPE_CHECKING

from llama3jit.engine.core import POLL_S, Core
from llama3jit.engine.params import check_bias_ids
from llama3jit.engine.sequence import Finish, Request, SequenceState, TokenEvent
from llama3jit.errors import InvalidArgumentError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator, Sequence

    from llama3jit.devices import Limits, Runner
    from llama3jit.engine.counters import Counters
    from llama3jit.engine.params import SamplingParams
    from llama3jit.engine.snapshot import CacheSnapshot


class Engine:
    """Runs requests of any number of threads on one Runner, which it owns and closes.

    `on_close` is called once, after the runner is closed. An engine that nobody closes is closed
    when it is collected or when the interpreter exits. `prefix_reuse`: what sequences leave in the
    cache is not computed again for others that begin with the same tokens.
    """

    def __init__(
        self,
        runner: Runner,
        on_close: Callable[[], None] | None = None,
        prefix_reuse: bool = True,
    ) -> None:
        self._core = Core(runner, on_close, prefix_reuse)
        self._core.thread.start()
        self._finalizer = weakref.finalize(self, self._core.close)
        # Not by the finalizer: exit handlers run last in, first out, and this one has to run before
        # those of the device, which were there first.
        self._finalizer.atexit = False
        atexit.register(self._core.close)

    @property
    def limits(self) -> Limits:
        """What the device holds."""
        return self._core.runner.limits

    @property
    def device(self) -> str:
        """Where it runs: "cpu", "cuda:0", "reference"."""
        return self._core.runner.device

    @property
    def memory(self) -> dict[str, int]:
        """Bytes that the model takes there, by use."""
        return dict(self._core.runner.memory)

    @property
    def n_ctx(self) -> int:
        """Tokens that one sequence may hold."""
        return self._core.scheduler.n_ctx

    @property
    def counters(self) -> Counters:
        """What was done so far, and what there is now."""
        return self._core.scheduler.counters

    def check(self, request: Request) -> None:
        """Raise what `submit` would raise, without submitting: InvalidArgumentError for ids outside
        the vocabulary, ContextOverflowError for a prompt that never fits, DeviceError when the
        engine is closed or the process was forked."""
        self._core.check_alive()
        _check_ids(request, self.limits.vocab_size)
        check_bias_ids(request.params, self.limits.vocab_size)
        self._capacity(request)

    def submit(self, request: Request) -> Handle:
        """Queue a request; its tokens come out of the handle. Raises as `check` does."""
        self.check(request)
        seed = request.params.seed
        sequence = SequenceState(
            request=request,
            seed=secrets.randbits(32) if seed is None else int(seed),
            submitted=time.perf_counter(),
            tokens=list(request.tokens),
            capacity=self._capacity(request),
            visited=request.visit_from,
        )
        self._core.add(sequence)
        return Handle(self, self._core, sequence)

    def capture_names(self) -> list[str]:
        """What `Request.capture` may name. Raises UnsupportedError where the device gives none."""
        from llama3jit.devices.capture import names_of

        return names_of(self._core.runner)

    def fork(self, handle: Handle, params: SamplingParams, seed: int | None = None) -> Handle:
        """A sequence that is under way goes on twice: the new one has its tokens so far and what
        is in the cache of them, and chooses on its own, by these parameters. max_tokens counts from
        the prompt on. The new handle gives what comes after the fork; `forked_tokens` are those
        before. Waits for the pass that is running. seed: None takes that of `params`, or draws one.

        Raises InvalidArgumentError when the sequence is over or is not one to generate from, or
        has max_tokens already; and as `check` does.
        """
        check_bias_ids(params, self.limits.vocab_size)
        seed = params.seed if seed is None else seed
        parent = handle._sequence
        request = replace(parent.request, params=params)
        child = SequenceState(
            request=request,
            seed=secrets.randbits(32) if seed is None else int(seed),
            submitted=time.perf_counter(),
            tokens=[],
            capacity=self._capacity(request),
            visited=0,
        )
        forked = Handle(self, self._core, child)  # cancelled with it, should the wait be broken off
        self._core.call(lambda: self._core.scheduler.fork(parent, child))
        return forked

    def save_cache(self, tokens: Sequence[int]) -> CacheSnapshot:
        """What the cache holds of these tokens, from position 0 on; nothing without prefix_reuse.
        Waits for the pass that is running."""
        return self._core.call(lambda: self._core.scheduler.save_cache(tokens))

    def load_cache(self, snapshot: CacheSnapshot) -> None:
        """Put blocks back, as many as no sequence needs, to be found by what begins with these
        tokens. Waits as save_cache does; nothing happens without prefix_reuse. Raises
        InvalidArgumentError for blocks of another size, or not as many as the tokens fill."""
        self._core.call(lambda: self._core.scheduler.cache.load(snapshot))

    def close(self) -> None:
        """Cancel what runs, end the thread, close the runner. May be called twice, by any thread;
        whoever waits for a token gets CancelledError."""
        self._finalizer()

    def _capacity(self, request: Request) -> int:
        return self._core.scheduler.capacity_for(
            len(request.tokens), request.params.max_tokens, request.visit is not None
        )


class Handle:
    """One request under way: iterate it for its tokens, once, in one thread or one coroutine;
    cancel it from any.

    After the iteration `finish` says why it ended; an error of the sequence is raised from the
    iteration. Waiting can be interrupted (Ctrl-C, a task that is cancelled); the request then goes
    on until it is cancelled.
    """

    def __init__(self, engine: Engine, core: Core, sequence: SequenceState) -> None:
        self._engine = engine  # collected, it would close
        self._core = core
        self._sequence = sequence
        self._arrived: asyncio.Event | None = None
        self.finish: Finish | None = None

    def __del__(self) -> None:
        # Nobody can ask for the rest: a Ctrl-C may come before whoever submitted could cancel.
        self._sequence.cancelled = True

    @property
    def seed(self) -> int:
        """The seed in use, given or drawn."""
        return self._sequence.seed

    @property
    def submitted(self) -> float:
        """time.perf_counter()'s when the request came in."""
        return self._sequence.submitted

    @property
    def admitted(self) -> float:
        """The same clock's when its work began; 0.0 before."""
        return self._sequence.admitted

    @property
    def prefix_tokens(self) -> int:
        """How many tokens of the prompt were in the cache already."""
        return self._sequence.prefix_tokens

    @property
    def forked_tokens(self) -> tuple[int, ...]:
        """What was generated before this was forked from another, if it was."""
        return self._sequence.forked

    def __iter__(self) -> Iterator[TokenEvent]:
        while self.finish is None:
            try:
                event = self._sequence.events.get(timeout=POLL_S)
            except Empty:
                self._core.check_waiting(self._sequence)
                continue
            if not self._is_last(event):
                yield event

    async def next(self) -> TokenEvent | None:
        """The next token, for a coroutine to wait for; None after the last."""
        if self._arrived is None:
            self._arrived = self._listen()
        while self.finish is None:
            self._arrived.clear()  # before looking, so that what comes meanwhile is told again
            try:
                event = self._sequence.events.get_nowait()
            except Empty:
                await self._arrived.wait()
                continue
            return None if self._is_last(event) else event
        return None

    def _listen(self) -> asyncio.Event:
        """What is set in the running event loop when there is an event."""
        import asyncio

        arrived = asyncio.Event()
        loop = asyncio.get_running_loop()

        def tell() -> None:
            if not arrived.is_set():
                loop.call_soon_threadsafe(arrived.set)

        self._sequence.listener = tell
        return arrived

    def _is_last(self, event: TokenEvent | Finish) -> bool:
        if not isinstance(event, Finish):
            return False
        self.finish = event
        if event.error is not None:
            raise event.error
        return True

    def cancel(self) -> None:
        """End the request at the next step; at once, if no other request shares the forward pass
        that is running. Does nothing when it is over."""
        self._sequence.cancelled = True
        self._core.stop_useless_pass()


def _check_ids(request: Request, vocab_size: int) -> None:
    tokens = request.tokens
    if len(tokens) and not (min(tokens) >= 0 and max(tokens) < vocab_size):
        wrong = next(i for i, token in enumerate(tokens) if not 0 <= token < vocab_size)
        raise InvalidArgumentError(
            f"token {wrong} of the prompt is {tokens[wrong]}: expected an id from 0 to "
            f"{vocab_size - 1}"
        )
