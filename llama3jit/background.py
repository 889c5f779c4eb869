"""Work in a thread whose result is wanted later."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Background(Generic[T]):
    """What `work()` gives, worked out in a daemon thread from `start` on."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._value: list[T] = []
        self._error: BaseException | None = None
        # Not Thread.join and is_alive: a join that Ctrl-C interrupts takes the thread for ended.
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="llama3jit-background", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def join(self) -> None:
        """Wait for the end, if it was begun; raises nothing."""
        if self._thread.ident is not None:
            self._ended.wait()

    def result(self) -> T:
        """Wait for the end; raises what the work raised."""
        self._ended.wait()
        if self._error is not None:
            raise self._error
        return self._value[0]

    def cancel(self, stop: Callable[[], None]) -> None:
        """Call `stop` again and again until the work ends; raises nothing."""
        while self._thread.ident is not None and not self._ended.wait(0.05):
            stop()

    def _run(self) -> None:
        try:
            self._value.append(self._work())
        except BaseException as error:
            self._error = error
        finally:
            self._ended.set()
