"""The thread that owns the forward passes."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, TypeVar

from llama3jit.engine.layout import Step
from llama3jit.engine.scheduler import Scheduler
from llama3jit.errors import CancelledError, DeviceError, InvalidArgumentError, Llama3JitError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from llama3jit.devices import Leading, Runner
    from llama3jit.engine.sequence import SequenceState

_EXIT_S = 10.0  # how long close waits for a forward pass that does not end

POLL_S = 0.5  # how often one who waits for the engine looks whether it still lives

_FORKED = "this process was forked from one that had the model open: load it again in the child"

T = TypeVar("T")
_Call = Callable[[], None]


@dataclass(frozen=True, slots=True)
class _Raised:
    error: Exception


class Core:
    """What the thread and the handles share; knows no Engine, so that one can be collected."""

    def __init__(
        self, runner: Runner, on_close: Callable[[], None] | None, prefix_reuse: bool
    ) -> None:
        self.runner = runner
        self.scheduler = Scheduler(runner, prefix_reuse)
        self.thread = threading.Thread(target=self._run, name="llama3jit-engine", daemon=True)
        # Not Thread.join and is_alive: a join that Ctrl-C interrupts takes the thread for ended.
        self._ended = threading.Event()
        self.forked = False
        self._on_close = on_close
        self._inbox: deque[SequenceState] = deque()
        self._calls: deque[_Call] = deque()
        self._wake = threading.Condition()  # guards _inbox, _calls and _closing
        self._closing = False
        # Guards _in_pass, and holds while the runner is cancelled. Reentrant, as the garbage
        # collector may close a generator, which cancels, in whoever holds it.
        self._pass = threading.RLock()
        self._in_pass: list[SequenceState] = []
        _cores.add(self)

    def check_alive(self) -> None:
        if self.forked:
            raise DeviceError(_FORKED)
        if self._closing or self._ended.is_set():
            raise DeviceError("the model is closed: load it again")

    def check_waiting(self, sequence: SequenceState) -> None:
        """Like check_alive, for one who waits: a closing engine still sends the last event."""
        if self.forked or (self._ended.is_set() and sequence.events.empty()):
            self.check_alive()

    def add(self, sequence: SequenceState) -> None:
        with self._wake:
            self.check_alive()
            self._inbox.append(sequence)
            self._wake.notify()
        self.stop_useless_pass()

    def call(self, work: Callable[[], T]) -> T:
        """Do something on the engine's thread between two passes, and wait for what it gives."""
        if threading.current_thread() is self.thread:
            raise InvalidArgumentError("this cannot be asked for from within a forward pass")
        answer: SimpleQueue[T | _Raised] = SimpleQueue()

        def answered() -> None:
            try:
                answer.put(work())
            except Exception as error:
                answer.put(_Raised(error))

        with self._wake:
            self.check_alive()
            self._calls.append(answered)
            self._wake.notify()
        while True:
            try:
                found = answer.get(timeout=POLL_S)
            except Empty:
                if self.forked or (self._ended.is_set() and answer.empty()):
                    self.check_alive()
                continue
            if isinstance(found, _Raised):
                raise found.error
            return found

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
        while not self._ended.is_set() and time.perf_counter() < deadline:
            with self._pass:
                if self._in_pass:
                    self.runner.cancel()
            self._ended.wait(0.05)

    def _run(self) -> None:
        try:
            self._serve()
        finally:
            self._ended.set()

    def _serve(self) -> None:
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
        if self._inbox or self._calls or self._closing or scheduler.idle:
            with self._wake:
                while scheduler.idle and not (self._inbox or self._calls or self._closing):
                    self._wake.wait()
                scheduler.waiting.extend(self._inbox)
                self._inbox.clear()
            while self._calls and not self._closing:
                self._calls.popleft()()
        return not self._closing

    def _forward(self, step: Step) -> None:
        sequences = [part[0] for part in step.parts]
        with self._pass:
            if all(s.cancelled for s in sequences):
                return
            self._in_pass = sequences
            self.runner.begin()
        logits: NDArray[np.float32] | Leading | None = None
        failure: Exception | None = None
        try:
            captures = {
                i: sequence.request.capture
                for i, sequence in enumerate(sequences)
                if sequence.request.capture is not None
            }
            if captures:
                from llama3jit.devices.capture import captured_pass

                logits = captured_pass(self.runner, step.batch, captures)
            elif self.runner.n_leading and step.is_led(self.runner.n_leading):
                logits = self.runner.leading(step.batch)
            if logits is None:
                logits = self.runner.forward(step.batch)
        except CancelledError as error:
            # Whoever is left runs again: the same tokens go to the same places in the cache.
            if not self._closing and not any(s.cancelled for s in sequences):
                failure = error
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


def _as_ours(error: Exception) -> Exception:
    if isinstance(error, Llama3JitError):
        return error
    ours = DeviceError(f"the forward pass failed: {error!r}")
    ours.__cause__ = error
    return ours


# Threads do not survive a fork: the child's engines say so instead of waiting for ever.
_cores: weakref.WeakSet[Core] = weakref.WeakSet()


def _mark_forked() -> None:
    for core in _cores:
        core.forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mark_forked)
