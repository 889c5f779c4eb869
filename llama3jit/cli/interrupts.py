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


def _leave(number: int, frame: FrameType | None) -> None:
    os.write(2, b"llama3jit: interrupted\n")
    os._exit(128 + number)
