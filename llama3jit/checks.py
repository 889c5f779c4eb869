"""Whether arguments are what they have to be."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection
from numbers import Integral

from llama3jit.errors import InvalidArgumentError


def check_whole(
    name: str, value: object, low: float = -math.inf, high: float = math.inf, note: str = ""
) -> int:
    """A whole number, Python's or NumPy's, between two others. Raises InvalidArgumentError, with
    the note at the end."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InvalidArgumentError(f"{name} is {value!r:.60}: expected a whole number{note}")
    whole = int(value)
    if not low <= whole <= high:
        bounds = f"{low} or more" if high == math.inf else f"{low} to {high}"
        raise InvalidArgumentError(f"{name} is {whole}: expected {bounds}{note}")
    return whole


def did_you_mean(name: str, known: Collection[str], otherwise: str = "") -> str:
    """The nearest of the names there are, to end a message with."""
    near = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {near[0]!r}?" if near else otherwise
