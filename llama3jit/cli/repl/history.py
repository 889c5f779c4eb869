"""The file of what was typed: for the owner's eyes alone, entries of several lines whole."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from prompt_toolkit.history import FileHistory

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_BYTES = 1 << 20  # of the file, when it is opened


def history_file() -> Path:
    """Where it is: LLAMA3JIT_HISTORY, else in the platform's folder for state, of the user."""
    if path := os.environ.get("LLAMA3JIT_HISTORY"):
        return Path(path).expanduser()
    from platformdirs import user_state_path

    return user_state_path("llama3jit", appauthor=False) / "chat_history"


class PrivateHistory(FileHistory):
    """FileHistory that keeps nothing while `keeps()` is false, and whose file has mode 0600.

    A file that cannot be made or written costs the history alone: entries live until the end of the
    process."""

    def __init__(self, path: Path, keeps: Callable[[], bool]) -> None:
        self._keeps = keeps
        self._writable = _prepare(path)
        super().__init__(str(path) if self._writable else os.devnull)

    def store_string(self, string: str) -> None:
        if self._writable and self._keeps():
            try:
                # Halves of surrogate pairs, from a terminal that is not UTF-8, cannot be written.
                super().store_string(string.encode(errors="replace").decode())
            except OSError:
                self._writable = False

    def load_history_strings(self) -> list[str]:
        try:
            return list(super().load_history_strings())
        except OSError:
            return []


def _prepare(path: Path) -> bool:
    """Make the file, with its folder; take rights away from others; cut what is too long."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError:
        return False
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):  # the null device, say: its mode is everybody's
        os.close(descriptor)
        return False
    with os.fdopen(descriptor, "r+b") as file:
        if status.st_mode & 0o077 and hasattr(os, "fchmod"):
            os.fchmod(file.fileno(), 0o600)
        if status.st_size > MAX_BYTES:
            file.seek(-MAX_BYTES // 2, os.SEEK_END)
            kept = file.read()
            file.truncate(0)
            file.write(kept[kept.find(b"\n# ") + 1 :])  # from the start of an entry
    return True
