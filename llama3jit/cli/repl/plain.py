"""Lines from a terminal that knows no escape sequences, or whose output goes elsewhere."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from llama3jit.cli.repl.entry import is_open

PROMPT, CONTINUATION = ">>> ", "... "


class PlainInput:
    """Reads a message a line, or of several, with what editing readline has for the terminal."""

    def __init__(self) -> None:
        self._readline: Any = None
        try:
            self._readline = import_module("readline")
        except ImportError:
            return  # no line editing on this platform

    def read(self, text: str = "") -> str:
        """A message or a command; `text` stands there first, its last line where it has several.
        Raises EOFError for Ctrl-D, KeyboardInterrupt."""
        *lines, last = text.split("\n")
        for line in lines:
            print(f"{CONTINUATION if line is not lines[0] else PROMPT}{line}", file=sys.stderr)
        typed = self._line(CONTINUATION if lines else PROMPT, last)
        whole = "\n".join([*lines, typed])
        while typed.endswith("\\") or is_open(whole):
            whole = whole.removesuffix("\\") + "\n"
            typed = self._line(CONTINUATION, "")
            whole += typed
        return whole

    def _line(self, prompt: str, text: str) -> str:
        readline = self._readline
        if readline is not None and text:
            readline.set_startup_hook(lambda: readline.insert_text(text))
        try:
            if sys.stdout.isatty():
                return input(prompt)
            print(prompt, end="", file=sys.stderr, flush=True)  # stdout is for the result
            line = sys.stdin.readline()
            if not line:
                raise EOFError
            return line.removesuffix("\n")
        finally:
            if readline is not None:
                readline.set_startup_hook(None)
