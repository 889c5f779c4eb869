"""The standard streams as the commands need them, whatever the caller has left of them."""

from __future__ import annotations

import os
import sys
import warnings
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterator


def open_closed() -> None:
    """Put the null device where a standard stream is closed: an empty input, an output that nobody
    reads. Otherwise the next file that is opened, a model say, would take its place."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, number)
            if null != number:
                os.close(null)
            mode = "r" if number == 0 else "w"
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


def take_any_bytes() -> None:
    """Read what is not UTF-8 on stdin as the bytes it is, instead of failing at it."""
    reconfigure = getattr(sys.stdin, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="surrogateescape")


def stdin_lines() -> Iterator[bytes]:
    """The lines of stdin as they come, without their ends. Reads the file itself: a thread that
    waits in the buffer of sys.stdin would keep the interpreter from ending."""
    try:
        number = sys.stdin.fileno()
    except OSError:  # something else was put in its place
        yield from (line.rstrip(b"\r\n") for line in sys.stdin.buffer)
        return
    rest = b""
    while data := os.read(number, 1 << 16):
        *lines, rest = (rest + data).split(b"\n")
        yield from (line.rstrip(b"\r") for line in lines)
    if rest:
        yield rest


def warn_in_a_line() -> None:
    """Show warnings as errors are shown."""
    warnings.showwarning = _show_warning


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    print(f"llama3jit: warning: {one_line(str(message))}", file=sys.stderr, flush=True)


def one_line(text: str) -> str:
    """A message without line breaks, and without anything that could steer a terminal: file names
    and templates come from elsewhere."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in " ".join(text.split()))
