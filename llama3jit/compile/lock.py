"""One process at a time compiles into a folder; the others wait, and then find the files."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK = "lock"
PATIENCE_S = 300.0  # all kernels take a minute or two; longer, and the other one hangs
POLL_S = 0.05


@contextmanager
def locked(folder: Path, done: Callable[[], bool], patience: float = PATIENCE_S) -> Iterator[None]:
    """Hold the folder's lock, or go on without once `done()` or after `patience` seconds.

    The lock only saves work, since files are renamed into place: where there is none to be had (no
    fcntl, a file system without locks), nobody waits. The system drops it when a process dies.
    """
    handle = _open(folder / LOCK)
    try:
        if handle is not None:
            end = time.monotonic() + patience
            while _is_taken(handle) and not done() and time.monotonic() < end:
                time.sleep(POLL_S)
        yield
    finally:
        if handle is not None:
            os.close(handle)


def _open(path: Path) -> int | None:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError:
        return None


def _is_taken(handle: int) -> bool:
    """Whether another process has the lock; takes it if not."""
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (ImportError, OSError):
        return False
    return False
