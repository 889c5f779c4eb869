"""Chat messages from outside, checked and copied to plain data."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

from llama3jit.errors import InvalidArgumentError

Message = Mapping[str, Any]
_ROLE = re.compile(r"[\w.-]+")
_MAX_DEPTH = 64


def plain_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Copies of `messages`: dicts with "role" and "content", text. Content may come as a list of
    {"type": "text", "text": ...}; these are joined by newlines. Content that is None is left out,
    where the message has tool calls. Raises InvalidArgumentError."""
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise InvalidArgumentError(
            f"messages is {type(messages).__name__}; expected a list of "
            '{"role": ..., "content": ...}'
        )
    if not messages:
        raise InvalidArgumentError("messages is empty; a prompt needs one message at least")
    return [_plain_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _plain_message(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidArgumentError(
            f'{where} is {type(message).__name__}; expected {{"role": ..., "content": ...}}'
        )
    role = message.get("role")
    # A role goes into the template's own text: <|role|>.
    if not isinstance(role, str) or not _ROLE.fullmatch(role):
        raise InvalidArgumentError(
            f"{where}['role'] is {role!r:.60}; expected a word such as 'user'"
        )
    content = message.get("content")
    copy: dict[str, Any] = plain_data(
        {key: value for key, value in message.items() if key != "content" and value is not None},
        where,
    )
    if content is not None or not message.get("tool_calls"):
        copy["content"] = _text(content, f"{where}['content']")
    return copy


def _text(content: Any, where: str) -> str:
    if isinstance(content, str):
        return str(content)
    if isinstance(content, list | tuple) and content:
        for i, part in enumerate(content):
            if not isinstance(part, Mapping) or part.get("type") != "text":
                raise InvalidArgumentError(
                    f'{where}[{i}] is {_short(part)}; expected {{"type": "text", "text": ...}}'
                )
            if not isinstance(part.get("text"), str):
                raise InvalidArgumentError(
                    f"{where}[{i}]['text'] is {_short(part.get('text'))}; expected text"
                )
        return "\n".join(part["text"] for part in content)
    raise InvalidArgumentError(
        f"{where} is {_short(content)}; expected text, or a list of text parts"
    )


def _short(value: Any) -> str:
    return f"{reprlib.repr(value):.60}"  # repr itself fails on what is nested too deep


def plain_data(value: Any, where: str, depth: int = 0) -> Any:
    """A copy of JSON-like data in plain dicts, lists, str, int, float, bool, None."""
    if depth > _MAX_DEPTH:
        raise InvalidArgumentError(f"{where} is nested more than {_MAX_DEPTH} deep")
    if value is None or isinstance(value, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, Mapping):
        copy = {}
        for key, item in value.items():
            if not isinstance(key, str):
                raise InvalidArgumentError(f"{where} has the key {key!r:.60}; expected text")
            copy[str(key)] = plain_data(item, f"{where}[{key!r:.40}]", depth + 1)
        return copy
    if isinstance(value, list | tuple):
        return [plain_data(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]
    raise InvalidArgumentError(
        f"{where} is {type(value).__name__}; expected data that JSON can hold"
    )
