"""The thread that owns the forward passes, and the handles by which other threads ask for them."""

from __future__ import annotations

import atexit
import os
import secrets
import threading
import time
import weakref
from collections import deque
from queue import Empty
from typing import TYPE_CHECKING

from llama3jit.engine.scheduler import Scheduler, Step
from llama3jit.engine.sequence import Finish, Request, SequenceState, TokenEvent
from llama3jit.errors import CancelledError, DeviceError, InvalidArgumentError, Llama3JitError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    from numpy.typing import NDArray

    from llama3jit.devices import Limits, Runner

_POLL_S = 0.5  # how often a waiting consumer looks whether the engine still lives
_STRAY_CANCELS = 50  # passes in a row that nobody of this engine cancelled, before it gives up
_EXIT_S = 10.0  # how long close waits for a forward pass that does not end

_FORKED = "this process was forked from one that had the model open: load it again in the child"


class Engine:
    """Runs requests of any number of threads on one Runner, which it owns and closes.

    `on_close` is called once, after the runner is closed. An engine that nobody closes is closed
    when it is collected or when the interpreter exits.
    """

    def __init__(self, runner: Runner, on_close: Callable[[], None] | None = None) -> None:
        self._core = _Core(runner, on_close)
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
    def n_ctx(self) -> int:
        """Tokens that one sequence may hold."""
        return self._core.scheduler.n_ctx

    def check(self, request: Request) -> None:
        """Raise what `submit` would raise, without submitting: InvalidArgumentError for ids outside
        the vocabulary, ContextOverflowError for a prompt that never fits, DeviceError when the
        engine is closed or the process was forked."""
        self._core.check_alive()
        _check_ids(request, self.limits.vocab_size)
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

    def close(self) -> None:
        """Cancel what runs, end the thread, close the runner. May be called twice, by any thread;
        whoever waits for a token gets CancelledError."""
        self._finalizer()

    def _capacity(self, request: Request) -> int:
        return self._core.scheduler.capacity_for(
            len(request.tokens), request.params.max_tokens, request.visit is not None
        )


class Handle:
    """One request under way: iterate it for its tokens, in one thread; cancel it from any.

    After the iteration `finish` says why it ended; an error of the sequence is raised from the
    iteration. Waiting can be interrupted (Ctrl-C); the request then goes on until it is cancelled.
    """

    def __init__(self, engine: Engine, core: _Core, sequence: SequenceState) -> None:
        self._engine = engine  # collected, it would close
        self._core = core
        self._sequence = sequence
        self.finish: Finish | None = None

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

    def __iter__(self) -> Iterator[TokenEvent]:
        while self.finish is None:
            try:
                event = self._sequence.events.get(timeout=_POLL_S)
            except Empty:
                self._core.check_running()
                continue
            if isinstance(event, Finish):
                self.finish = event
                if event.error is not None:
                    raise event.error
            else:
                yield event

    def cancel(self) -> None:
        """End the request at the next step; at once, if no other request shares the forward pass
        that is running. Does nothing when it is over."""
        self._sequence.cancelled = True
        self._core.stop_useless_pass()


class _Core:
    """What the thread and the handles share; knows no Engine, so that one can be collected."""

    def __init__(self, runner: Runner, on_close: Callable[[], None] | None) -> None:
        self.runner = runner
        self.scheduler = Scheduler(runner.limits)
        self.thread = threading.Thread(target=self._run, name="llama3jit-engine", daemon=True)
        self.forked = False
        self._on_close = on_close
        self._inbox: deque[SequenceState] = deque()
        self._wake = threading.Condition()  # guards _inbox and _closing
        self._closing = False
        self._pass = threading.Lock()  # guards _in_pass, and holds while the runner is cancelled
        self._in_pass: list[SequenceState] = []
        self._stray_cancels = 0
        _cores.add(self)

    def check_alive(self) -> None:
        if self.forked:
            raise DeviceError(_FORKED)
        if self._closing or not self.thread.is_alive():
            raise DeviceError("the model is closed: load it again")

    def check_running(self) -> None:
        """Like check_alive, for one who waits: a closing engine still sends the last event."""
        if self.forked or not self.thread.is_alive():
            self.check_alive()

    def add(self, sequence: SequenceState) -> None:
        with self._wake:
            self.check_alive()
            self._inbox.append(sequence)
            self._wake.notify()
        self.stop_useless_pass()

    def stop_useless_pass(self) -> None:
        """Cancel the forward pass that is running if nobody wants it any more."""
        if self.forked:
            return
        with self._pass:
            if self._in_pass and all(s.cancelled for s in self._in_pass):
                self.runner.cancel()

    def close(self) -> None:
        atexit.unregister(self.close)
        if self.forked:  # the threads are not in this process, and the device's memory is shared
            return
        with self._wake:
            self._closing = True
            self._wake.notify()
        if threading.current_thread() is self.thread:  # collected while the thread ran
            return
        deadline = time.perf_counter() + _EXIT_S
        while self.thread.is_alive() and time.perf_counter() < deadline:
            with self._pass:
                if self._in_pass:
                    self.runner.cancel()
            self.thread.join(0.05)

    def _run(self) -> None:
        closed: Exception = CancelledError("the model was closed before this request was done")
        try:
            while self._collect():
                step = self.scheduler.next_step()
                if step is not None:
                    self._forward(step)
        except Exception as error:
            closed = DeviceError(f"the engine failed: {error!r}; load the model again")
            closed.__cause__ = error
        finally:
            with self._wake:
                self._closing = True
                self.scheduler.waiting.extend(self._inbox)
                self._inbox.clear()
            for sequence in (*self.scheduler.waiting, *self.scheduler.running):
                self.scheduler.finish(sequence, "cancelled", closed)
            self.runner.close()
            if self._on_close is not None:
                self._on_close()

    def _collect(self) -> bool:
        """Take new requests in, waiting for one if there is nothing to do; False when closing."""
        scheduler = self.scheduler
        if self._inbox or self._closing or scheduler.idle:
            with self._wake:
                while scheduler.idle and not self._inbox and not self._closing:
                    self._wake.wait()
                scheduler.waiting.extend(self._inbox)
                self._inbox.clear()
        return not self._closing

    def _forward(self, step: Step) -> None:
        sequences = [part[0] for part in step.parts]
        with self._pass:
            if all(s.cancelled for s in sequences):
                return
            self._in_pass = sequences
        logits: NDArray[np.float32] | None = None
        failure: Exception | None = None
        try:
            logits = self.runner.forward(step.batch)
            self._stray_cancels = 0
        except CancelledError as error:
            # Whoever is left runs again: the same tokens go to the same places in the cache. Models
            # may share a device's threads, so that the cancelling was meant for another's pass.
            if not self._closing and not any(s.cancelled for s in sequences):
                self._stray_cancels += 1
                failure = error if self._stray_cancels > _STRAY_CANCELS else None
        except Exception as error:
            failure = _as_ours(error)
        finally:
            with self._pass:
                self._in_pass = []
        if failure is not None:
            for sequence in sequences:
                self.scheduler.finish(sequence, "error", failure)
        elif logits is not None:
            self.scheduler.apply(step, logits)


def _check_ids(request: Request, vocab_size: int) -> None:
    tokens = request.tokens
    if len(tokens) and not (min(tokens) >= 0 and max(tokens) < vocab_size):
        wrong = next(i for i, token in enumerate(tokens) if not 0 <= token < vocab_size)
        raise InvalidArgumentError(
            f"token {wrong} of the prompt is {tokens[wrong]}: expected an id from 0 to "
            f"{vocab_size - 1}"
        )


def _as_ours(error: Exception) -> Exception:
    if isinstance(error, Llama3JitError):
        return error
    ours = DeviceError(f"the forward pass failed: {error!r}")
    ours.__cause__ = error
    return ours


# Threads do not survive a fork: the child's engines say so instead of waiting for ever.
_cores: weakref.WeakSet[_Core] = weakref.WeakSet()


def _mark_forked() -> None:
    for core in _cores:
        core.forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mark_forked)
