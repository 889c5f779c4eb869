"""Tool calls in the text of a reply: `ToolCallParser`.

Two ways of writing them are known, and told apart by the text itself: Hermes's and Qwen's
`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, after any text; and that of Llama 3.x,
`{"name": ..., "parameters": {...}}` as the whole reply, several parted by `;`, or after
`<|python_tag|>`, which calls of Llama's built-in tools (`name.call(key="value")`) and Python code
follow too. Either takes "arguments" or "parameters".
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

OPEN, CLOSE, PYTHON = "<tool_call>", "</tool_call>", "<|python_tag|>"
MARKERS = (OPEN, CLOSE, PYTHON)
CODE_TOOLS = ("code_interpreter", "python", "ipython")  # these take {"code": ...}

_NAME = r'"name"\s*:\s*(?P<name>"(?:[^"\\]|\\.){1,256}")\s*,\s*'
_HEAD = re.compile(
    r'\s*\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?' + _NAME + r'"(?:arguments|parameters)"\s*:\s*'
    r"(?=\{)"
)
_BUILT_IN = re.compile(r"\s*(?P<name>\w+)\.call\((?P<arguments>.*)\)\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Text that is no call."""

    text: str


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A piece of the call of this number: its name comes with the first, and the pieces of its
    arguments join to one JSON object, as the model wrote it."""

    index: int
    name: str | None
    arguments: str


Piece = TextPiece | CallPiece


class ToolCallParser:
    """Turns the text of a reply, part by part, into pieces of text and of calls.

    `names`: the tools that there are; a reply that is bare JSON is a call only if it names one. The
    arguments of a call are given out as they come. What begins like a call and is none stays text,
    marks and all. The pieces are the same however the text is cut into parts, but for where the
    pieces of texts and arguments are cut.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)
        self._held = ""
        self._state = "start"  # "text", "call", "arguments", "closing", "between", "python"
        self._mark = ""  # what the call under way began with; "" for bare JSON
        self._scanner = _ObjectScanner()
        self._scanned = 0  # characters of what is held that the scanner saw
        self.calls = 0  # begun so far

    def push(self, part: str) -> list[Piece]:
        """The pieces that this part makes certain."""
        self._held += part
        return self._run(final=False)

    def finish(self) -> list[Piece]:
        """The rest: no more text comes."""
        return self._run(final=True)

    def _run(self, final: bool) -> list[Piece]:
        pieces: list[Piece] = []
        while True:
            before = self._state, len(self._held), len(pieces)
            getattr(self, f"_in_{self._state}")(pieces, final)
            if (self._state, len(self._held), len(pieces)) == before:
                return pieces

    def _in_start(self, pieces: list[Piece], final: bool) -> None:
        """Nothing but white space came yet: JSON here is bare."""
        inner = self._held.lstrip()
        if inner.startswith("{"):
            self._enter_call("")
        elif inner or final:
            self._state = "text"

    def _in_text(self, pieces: list[Piece], final: bool) -> None:
        found = [(self._held.find(mark), mark) for mark in (OPEN, PYTHON) if mark in self._held]
        if found:
            at, mark = min(found)
            self._give_text(pieces, self._held[:at], before_call=True)
            self._held = self._held[at + len(mark) :]
            self._enter_call(mark)
            if mark == PYTHON:
                self._state = "python"
            return
        safe = len(self._held) if final else _begun(self._held, (OPEN, PYTHON))
        if not final:  # spaces before a call are left out
            safe = len(self._held[:safe].rstrip())
        self._give_text(pieces, self._held[:safe])
        self._held = self._held[safe:]

    def _in_python(self, pieces: list[Piece], final: bool) -> None:
        if self._held.lstrip().startswith("{"):
            self._enter_call(PYTHON)
        elif final and self._held:
            call = _built_in_call(self._held, self._names)
            if call is None:
                self._give_text(pieces, self._held)
            else:
                pieces.append(CallPiece(self._begin(), *call))
            self._held = ""

    def _in_call(self, pieces: list[Piece], final: bool) -> None:
        """At the object that may be a call: its name and then its arguments, if it begins so."""
        head = _HEAD.match(self._held)
        if head is not None and (name := _string(head["name"])) is not None and self._known(name):
            pieces.append(CallPiece(self._begin(), name, ""))
            self._held = self._held[head.end() :]
            self._state, self._scanner = "arguments", _ObjectScanner()
            return
        scanner = self._scanner
        if not (scanner.done or scanner.failed):
            self._scanned += scanner.feed(self._held[self._scanned :])
        if scanner.done:
            call = self._whole_call(self._held[: self._scanned])
            if call is not None:
                pieces.append(CallPiece(self._begin(), *call))
                self._held = self._held[self._scanned :]
                self._state = "between"
                return
        if scanner.done or scanner.failed or final:
            self._give_text(pieces, self._mark)
            self._mark, self._state = "", "text"

    def _in_arguments(self, pieces: list[Piece], final: bool) -> None:
        size = self._scanner.feed(self._held)
        if size:
            pieces.append(CallPiece(self.calls - 1, None, self._held[:size]))
            self._held = self._held[size:]
        if self._scanner.done:
            self._state = "closing"

    def _in_closing(self, pieces: list[Piece], final: bool) -> None:
        """After the arguments, up to the end of the object that holds them."""
        rest = self._held.lstrip()
        if rest.startswith("}"):
            self._held, self._state = rest[1:], "between"
        elif rest or final:
            self._state = "between"

    def _in_between(self, pieces: list[Piece], final: bool) -> None:
        """After a call: its closing mark, or a bare one that follows."""
        rest = self._held.lstrip(" \t\r\n;" if self._mark != OPEN else " \t\r\n")
        if self._mark == OPEN and rest.startswith(CLOSE):
            self._held, self._mark, self._state = rest[len(CLOSE) :], "", "text"
        elif self._mark == OPEN and CLOSE.startswith(rest) and not final:
            return
        elif self._mark != OPEN and rest.startswith("{"):
            self._held = rest
            self._enter_call(self._mark)
        elif rest or final:
            self._state = "text"
            self._held = rest

    def _enter_call(self, mark: str) -> None:
        self._state, self._mark = "call", mark
        self._scanner, self._scanned = _ObjectScanner(), 0

    def _known(self, name: str) -> bool:
        return self._mark != "" or name in self._names

    def _begin(self) -> int:
        self.calls += 1
        return self.calls - 1

    def _whole_call(self, source: str) -> tuple[str, str] | None:
        """Name and arguments of an object that has them in another order or form."""
        try:
            call = json.loads(source)
        except ValueError:
            return None
        name = call.get("name")
        arguments = call.get("arguments", call.get("parameters"))
        if not isinstance(name, str) or not self._known(name):
            return None
        if isinstance(arguments, str):
            return name, arguments
        if arguments is None or isinstance(arguments, dict):
            return name, json.dumps(arguments or {}, ensure_ascii=False)
        return None

    def _give_text(self, pieces: list[Piece], text: str, before_call: bool = False) -> None:
        if before_call:
            text = text.rstrip()
        if text:
            pieces.append(TextPiece(text))


class _ObjectScanner:
    """Finds the end of a JSON object, part by part, by its brackets and strings."""

    def __init__(self) -> None:
        self.done = False
        self.failed = False
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def feed(self, text: str) -> int:
        """How much of the text belongs to the object."""
        for at, char in enumerate(text):
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif char == "\\":
                    self._escaped = True
                elif char == '"':
                    self._in_string = False
            elif char == '"':
                self._in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
            elif char.isspace():  # there may be some before the object
                continue
            if self._depth <= 0:
                self.done = char == "}"
                self.failed = not self.done
                return at + 1
        return len(text)


def _begun(text: str, marks: Collection[str]) -> int:
    """Where the longest end of `text` starts that begins a mark; its length if none."""
    longest = max(map(len, marks))
    for at in range(max(0, len(text) - longest + 1), len(text)):
        if any(mark.startswith(text[at:]) for mark in marks):
            return at
    return len(text)


def _string(source: str) -> str | None:
    try:
        return str(json.loads(source))
    except ValueError:
        return None


def _built_in_call(source: str, names: Collection[str]) -> tuple[str, str] | None:
    """Name and arguments of `name.call(key="value")`, or of Python code if a tool takes it."""
    match = _BUILT_IN.fullmatch(source)
    if match:
        try:
            call: Any = ast.parse(f"f({match['arguments']})", mode="eval").body
            values = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
            if not call.args and None not in values:
                return match["name"], json.dumps(values, ensure_ascii=False)
        except (SyntaxError, ValueError, TypeError):
            pass
    for name in CODE_TOOLS:
        if name in names:
            return name, json.dumps({"code": source}, ensure_ascii=False)
    return None
