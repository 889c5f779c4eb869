"""Work in threads: a result that is wanted later, many results in the order of what they are for;
and loading without garbage collection."""

from __future__ import annotations

import gc
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

S = TypeVar("S")
T = TypeVar("T")


@contextmanager
def uncollected() -> Iterator[None]:
    """Pause the garbage collector: while a vocabulary is built it would look through hundreds of
    thousands of objects again and again, none of them garbage."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class Background(Generic[T]):
    """What `work()` gives, worked out in a daemon thread from `start` on."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._value: list[T] = []
        self._error: BaseException | None = None
        # Not the thread's own end: a join that Ctrl-C interrupts takes the thread for ended.
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="llama3jit-background", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def join(self) -> None:
        """Wait for the end, if it was begun; raises nothing."""
        if self._thread.ident is not None:
            self._done.wait()

    def result(self) -> T:
        """Wait for the end, of what begins now if it did not; raises what the work raised."""
        if self._thread.ident is None:
            self.start()
        self._done.wait()
        if self._error is not None:
            raise self._error
        return self._value[0]

    def cancel(self, stop: Callable[[], None]) -> None:
        """Call `stop` again and again until the work ends; raises nothing."""
        while self._thread.ident is not None and not self._done.is_set():
            stop()
            self._done.wait(0.05)

    def _run(self) -> None:
        try:
            self._value.append(self._work())
        except BaseException as error:
            self._error = error
        finally:
            self._done.set()


def in_order(items: Iterable[S], work: Callable[[S], T], at_once: int) -> Generator[T, None, None]:
    """`work(item)` of each item, `at_once` of them together, in the order of the items; raises what
    `work` or `items` raises.

    Items are drawn by a daemon thread, a few ahead, so that no result waits for the next item.
    Closing the generator drops what has not begun and waits for nothing.
    """
    import queue
    from concurrent.futures import Future, ThreadPoolExecutor

    begun: queue.Queue[Future[T] | None] = queue.Queue()
    room = threading.Semaphore(2 * at_once)
    closed = threading.Event()
    pool = ThreadPoolExecutor(at_once)

    def draw() -> None:
        try:
            for item in items:
                room.acquire()
                if closed.is_set():
                    return
                begun.put(pool.submit(work, item))
        except BaseException as error:
            failed: Future[T] = Future()
            failed.set_exception(error)
            begun.put(failed)
        begun.put(None)

    threading.Thread(target=draw, daemon=True).start()
    try:
        while (future := begun.get()) is not None:
            yield future.result()
            room.release()
    finally:
        closed.set()
        room.release()
        pool.shutdown(wait=False, cancel_futures=True)
