"""Text in the user's own editor."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from llama3jit.cli.generate import read_text
from llama3jit.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterator

_KNOWN = ("editor", "nano", "vi", "notepad")  # where neither VISUAL nor EDITOR says


def edit(text: str) -> str:
    """The text as the editor leaves it, without line breaks at its end. Raises
    InvalidArgumentError when there is no editor, or it fails."""
    command = _command()
    with tempfile.TemporaryDirectory(prefix="llama3jit-") as folder:  # for the owner alone
        file = Path(folder) / "message.md"
        file.write_text(text, encoding="utf-8", errors="surrogateescape")
        try:
            with _interrupts_are_the_editors():
                status = subprocess.call([*command, str(file)])
        except OSError as error:
            raise InvalidArgumentError(
                f"the editor {command[0]} does not start ({error.strerror}); set EDITOR to another"
            ) from None
        if status != 0:
            raise InvalidArgumentError(
                f"the editor {command[0]} ended with status {status}: the text stays as it was"
            )
        return read_text(file).rstrip("\n")


def _command() -> list[str]:
    """The editor and its arguments."""
    for name in ("VISUAL", "EDITOR"):
        if chosen := os.environ.get(name, "").strip():
            try:
                return shlex.split(chosen, posix=os.name != "nt")
            except ValueError as error:
                raise InvalidArgumentError(
                    f"{name} is {chosen!r}: {error}; expected a command"
                ) from None
    for name in _KNOWN:
        if found := shutil.which(name):
            return [found]
    raise InvalidArgumentError("no editor was found; set EDITOR to one")


@contextmanager
def _interrupts_are_the_editors() -> Iterator[None]:
    """Within, Ctrl-C does nothing to this process; the editor, in the same terminal, gets it too.
    A handler, since the editor would inherit that the signal is ignored."""
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
