"""Text on the screen: wrapped at words, and nothing in it that could steer the terminal."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable

# Control characters but newline and tab, what turns the writing direction, line separators, and
# halves of surrogate pairs. Joiners and variation selectors stay: scripts and emoji need them.
_UNSHOWN = "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
_PART = r"\n|[ \t]+|[^ \t\n]+"
TAB = 8
MIN_COLUMNS = 10  # narrower terminals are left to wrap by themselves


def shown(text: str) -> str:
    """The text with control characters as escapes, for a terminal; carriage returns go."""
    return re.sub(_UNSHOWN, lambda match: repr(match[0])[1:-1], text.replace("\r", ""))


def say(text: str) -> None:
    """To the person, not into the result; safe for a terminal."""
    text = shown(text)
    encoding = sys.stderr.encoding or "utf-8"
    text = text.encode(encoding, "backslashreplace").decode(encoding)
    print(text, file=sys.stderr, flush=True)


def columns_of(stream: TextIO) -> int:
    """Columns of the terminal that the stream is; 0 if it is none."""
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        return 0


class Plain:
    """Writes text as it is: for files and pipes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()

    def end(self) -> None:
        """End the last line."""
        self.write("\n")


class Shown(Plain):
    """Writes text so that a terminal only shows it; long lines are the terminal's to break."""

    def write(self, text: str) -> None:
        super().write(shown(text))


class Wrapped(Plain):
    """Writes text so that no word is cut at the terminal's edge.

    A word is written as it comes. When it turns out too long for the line, it is taken back with
    backspaces and spaces, which every terminal knows, and goes to the next one. The last column
    stays empty: in it terminals differ in where the cursor is. A wide character is a word.
    """

    def __init__(self, stream: TextIO, columns: Callable[[], int]) -> None:
        super().__init__(stream)
        self._columns = columns
        self._column = 0
        self._word = ""  # at the end of the line, in cells of one column
        self._full = False  # a space did not fit: what comes next begins a line
        self._out: list[str] = []

    def write(self, text: str) -> None:
        limit = self._columns() - 1
        if limit < MIN_COLUMNS:
            limit = sys.maxsize
        for part in re.findall(_PART, shown(text)):
            if part == "\n":
                self._break()
            elif part[0] in " \t":
                self._space(part, limit)
            else:
                self._letters(part, limit)
        super().write("".join(self._out))
        self._out.clear()

    def end(self) -> None:
        """End the last line."""
        self._break()
        super().write(self._out.pop())

    def _space(self, part: str, limit: int) -> None:
        self._word = ""
        for space in part:
            width = TAB - self._column % TAB if space == "\t" else 1
            self._full = self._full or self._column + width > limit
            if self._full:  # the spaces that a line is broken at are not shown
                return
            self._out.append(" " * width)
            self._column += width

    def _letters(self, part: str, limit: int) -> None:
        from wcwidth import wcwidth

        if self._full:
            self._break()
        for letter in part:
            width = max(0, wcwidth(letter))
            if self._column + width > limit:
                self._move_word(limit)
            self._out.append(letter)
            self._column += width
            self._word = "" if width > 1 else self._word + letter

    def _move_word(self, limit: int) -> None:
        """Go to the next line with the word that is being written; one as long as a line is cut."""
        from wcwidth import wcwidth

        cells = sum(max(0, wcwidth(letter)) for letter in self._word)
        word = self._word if cells < self._column and cells < limit else ""
        if word:
            self._out.append("\b" * cells + " " * cells)
        self._break()
        self._out.append(word)
        self._column, self._word = cells if word else 0, word

    def _break(self) -> None:
        self._out.append("\n")
        self._column, self._word, self._full = 0, "", False


def writer(stream: TextIO, wraps: bool) -> Plain:
    """How a reply is written to a stream."""
    if not columns_of(stream):
        return Plain(stream)
    return Wrapped(stream, lambda: columns_of(stream)) if wraps else Shown(stream)
