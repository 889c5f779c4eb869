"""Whether arguments are what they have to be."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection
from numbers import Integral
from typing import TypeGuard

from llama3jit.errors import InvalidArgumentError


def shown(value: object) -> str:
    """The beginning of what a value is written as; Python refuses to write very long numbers."""
    try:
        return f"{value!r:.60}"
    except ValueError:
        return f"a very long {type(value).__name__}"


def is_whole(value: object) -> TypeGuard[Integral]:
    """Whether a value is a whole number; NumPy counts spans of time among its integers."""
    is_span = type(value).__name__ == "timedelta64"
    return isinstance(value, Integral) and not isinstance(value, bool) and not is_span


def check_whole(
    name: str, value: object, low: float = -math.inf, high: float = math.inf, note: str = ""
) -> int:
    """A whole number, Python's or NumPy's, between two others. Raises InvalidArgumentError, with
    the note at the end."""
    if not is_whole(value):
        raise InvalidArgumentError(f"{name} is {shown(value)}: expected a whole number{note}")
    whole = int(value)
    if not low <= whole <= high:
        bounds = f"{low} or more" if high == math.inf else f"{low} to {high}"
        raise InvalidArgumentError(f"{name} is {shown(whole)}: expected {bounds}{note}")
    return whole


def did_you_mean(name: str, known: Collection[str], otherwise: str = "") -> str:
    """The nearest of the names there are, to end a message with."""
    near = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {near[0]!r}?" if near else otherwise
