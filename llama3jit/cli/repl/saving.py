"""Conversations as JSON files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama3jit.errors import InvalidArgumentError

if TYPE_CHECKING:
    from llama3jit.cli.repl.conversation import Conversation

FORMAT = "llama3jit conversation"
VERSION = 1
_KEYS = {"format", "version", "system", "parameters", "messages"}


def save(conversation: Conversation, path: Path) -> None:
    """Write a conversation, whole or not at all; in place of another conversation, and of no other
    file. Raises InvalidArgumentError."""
    from llama3jit.files.whole import write_whole

    try:
        target = path.resolve()  # a link stays a link
        if target.exists():
            _check_replaceable(target)
        write_whole(target, _written(conversation), private=True)
    except OSError as error:
        raise InvalidArgumentError(f"{path} cannot be written: {error.strerror}") from None


def load(path: Path) -> Conversation:
    """Read a conversation. Raises InvalidArgumentError for what is none, before anything counts."""
    from llama3jit.arguments import split_sampling
    from llama3jit.cli.repl.conversation import Conversation
    from llama3jit.overflow import check_overflow
    from llama3jit.text.messages import plain_messages

    content = _read(path)
    system, parameters, messages = (content[key] for key in ("system", "parameters", "messages"))
    try:
        if not (system is None or isinstance(system, str)):
            raise InvalidArgumentError(f"system is {system!r:.40}; expected text or null")
        if not isinstance(parameters, dict):
            raise InvalidArgumentError(f"parameters is {parameters!r:.40}; expected an object")
        parameters = _with_ids(parameters)
        split_sampling(parameters)  # type: ignore[arg-type]
        check_overflow(parameters.get("on_overflow") or "error")
        found = plain_messages(messages) if messages != [] else []
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{path}: {error}") from None
    return Conversation(system, parameters, list(found))


def _written(conversation: Conversation) -> bytes:
    content = {
        "format": FORMAT,
        "version": VERSION,
        "system": conversation.system,
        "parameters": conversation.parameters,
        "messages": conversation.messages,
    }
    return json.dumps(content, indent=1, allow_nan=False).encode() + b"\n"


def _read(path: Path) -> dict[str, Any]:
    """The object that the file holds, with the keys of a conversation."""
    from llama3jit.cli.generate import read_text

    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise InvalidArgumentError(f"{path} is not a file; expected one that /save wrote")
    try:
        content = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        if isinstance(error, InvalidArgumentError):
            raise
        raise InvalidArgumentError(
            f"{path} is not JSON ({error}); expected a file that /save wrote"
        ) from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InvalidArgumentError(
            f'{path} holds no conversation: "format" is not "{FORMAT}"; expected a file that '
            "/save wrote"
        )
    if content.get("version") != VERSION:
        raise InvalidArgumentError(
            f"{path} is of version {content.get('version')!r:.40}; this program reads {VERSION}"
        )
    if set(content) != _KEYS:
        wrong = ", ".join(sorted(set(content) ^ _KEYS))
        raise InvalidArgumentError(
            f"{path}: missing or unknown: {wrong!r:.80}; expected {', '.join(sorted(_KEYS))}"
        )
    return content


def _check_replaceable(path: Path) -> None:
    if path.is_dir():
        raise InvalidArgumentError(f"{path} is a folder; expected the name of a file")
    if path.is_file() and not os.access(path, os.W_OK):
        raise InvalidArgumentError(f"{path} cannot be written: it is read-only")
    try:
        _read(path)
    except InvalidArgumentError:
        raise InvalidArgumentError(
            f"{path} is there, and is no conversation; it is left alone: give another name"
        ) from None


def _with_ids(parameters: dict[str, Any]) -> dict[str, Any]:
    """JSON's keys are text; token ids as keys are numbers again."""
    return {
        name: {int(key): item for key, item in value.items()}
        if isinstance(value, dict) and value and all(key.isdecimal() for key in value)
        else value
        for name, value in parameters.items()
    }
