"""What Ctrl-C does while there is nothing to stop or to keep."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def leaving_at_once() -> Iterator[None]:
    """Within, Ctrl-C ends the process with one line and status 130.

    For imports and loading: Python drops a KeyboardInterrupt that comes in the middle of some of
    an import's steps, and compiled code does not see it. Does nothing where SIGINT is ignored or
    handled by somebody else, and outside of the main thread.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    try:
        signal.signal(signal.SIGINT, _leave)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Within, SIGTERM and SIGHUP end the process as Ctrl-C does, temporary files cleared away; the
    status is 128 and the signal's number. Does nothing where they are ignored or handled."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    kinds = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    taken = [kind for kind in kinds if signal.getsignal(kind) is signal.SIG_DFL]
    try:
        for kind in taken:
            signal.signal(kind, end)
    except ValueError:  # not the main thread
        taken = []
    try:
        yield
    finally:
        for kind in taken:
            signal.signal(kind, signal.SIG_DFL)


def _leave(number: int, frame: FrameType | None) -> None:
    os.write(2, b"llama3jit: interrupted\n")
    os._exit(128 + number)
