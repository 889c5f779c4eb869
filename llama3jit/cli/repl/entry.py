"""What was typed, as a message: fences of three quotes, escaped slashes."""

from __future__ import annotations

FENCE = '"""'


def is_command(text: str) -> bool:
    """Whether it is a command and not a message: it begins with one slash."""
    return text.startswith("/") and not text.startswith("//")


def is_open(text: str) -> bool:
    """Whether a fence was opened, at the start or as what a command is given, and not closed."""
    head, fence, rest = text.lstrip().partition(FENCE)
    opened = bool(fence) and (
        not head or (is_command(head) and head.endswith(" ") and "\n" not in head)
    )
    return opened and FENCE not in rest


def unfenced(text: str) -> str:
    """The text without the fence around all of it, if there is one, and without space around."""
    text = text.strip()
    if text.startswith(FENCE) and text.find(FENCE, len(FENCE)) == len(text) - len(FENCE):
        text = text[len(FENCE) : -len(FENCE)]
    return text.strip("\n") if text.strip() else ""


def message_of(text: str) -> str:
    """What is sent of what was typed: //text is /text."""
    text = text.strip()
    return text[1:] if text.startswith("//") else unfenced(text)
