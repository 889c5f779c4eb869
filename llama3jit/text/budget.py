"""What a chat template may spend. Nothing can interrupt C code that runs, so whatever makes much
out of little (repetition, powers, padding, replacing, joining) is paid for before it runs."""

from __future__ import annotations

import re
import time
from collections.abc import ItemsView, KeysView, ValuesView
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jinja2.exceptions import SecurityError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MAX_STEPS = 500_000  # loop rounds, calls, items of ranges
MAX_CHARACTERS = 1 << 26  # made on the way, intermediate strings included
MAX_OUTPUT = 1 << 24
MAX_SECONDS = 5.0  # of the thread that renders
MAX_WIDTH = 1000  # of padding and indentation
MAX_BITS = 4096  # of an integer
_WIDE_PERCENT = re.compile(r"%(\([^)]*\))?[-+ #0]*(\d{4}|\*|\d*\.(\d{4}|\*))")
_WIDE_BRACES = re.compile(r"\{[^{}]*(\d{4}|\{)")


@dataclass(slots=True)
class Budget:
    """What one render may still spend."""

    characters: int = MAX_CHARACTERS
    steps: int = MAX_STEPS
    end: float = field(default_factory=lambda: time.thread_time() + MAX_SECONDS)


_BUDGET: ContextVar[Budget | None] = ContextVar("budget", default=None)


@contextmanager
def budget(given: int) -> Iterator[None]:
    """Spending is limited inside. `given`: characters in the variables of the template."""
    token = _BUDGET.set(Budget(MAX_CHARACTERS + 64 * given))
    try:
        yield
    finally:
        _BUDGET.reset(token)


def spend(characters: int = 0, steps: int = 1) -> None:
    """Take from the budget of the render that runs (outside of one it costs nothing). Raises
    SecurityError where that is too much."""
    left = _BUDGET.get()
    if left is None:
        return
    left.characters -= characters
    left.steps -= steps
    if left.characters < 0:
        raise SecurityError("it makes too much text")
    if left.steps < 0:
        raise SecurityError("it takes too many steps")
    if time.thread_time() > left.end:
        raise SecurityError(f"it takes longer than {MAX_SECONDS:g} s")


def charged(value: Any) -> Any:
    """`value`, its length paid for."""
    spend(len(value) if isinstance(value, str | list | tuple) else 0)
    return value


def charged_as_text(value: Any) -> Any:
    """`value`, paid for as all the text in it."""
    spend(size_of(value))
    return value


def size_of(value: Any) -> int:
    """Characters in a value, as far as text goes: of all that its text would show. Looking at each
    item costs a step, so that a value which holds another many times over is as large as it looks.
    """
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        value = value.items()
    elif not isinstance(value, list | tuple | KeysView | ValuesView | ItemsView):
        return 1
    total = 0
    for item in value:
        spend()
        total += size_of(item)
    return total


def counted(items: Iterable[Any]) -> Iterator[Any]:
    """The items, each costing a step."""
    for item in items:
        spend()
        yield item


def check_widths(values: Iterable[Any]) -> None:
    """Refuse widths of padding or indentation, numbers or text, that are beyond MAX_WIDTH."""
    for value in values:
        width = len(value) if isinstance(value, str) else value
        if isinstance(width, int | float) and abs(width) > MAX_WIDTH:
            raise SecurityError(f"it pads or indents by more than {MAX_WIDTH}")


def cost_of_operator(operator: str, left: Any, right: Any) -> int:
    """Characters or items that `left operator right` makes."""
    sizes = [len(side) if isinstance(side, str | list | tuple) else 0 for side in (left, right)]
    if operator == "%" and isinstance(left, str):
        return cost_of_format(left, [right])
    if operator == "*" and any(sizes):
        other = left if sizes[1] else right
        return max(sizes) * max(int(other), 0) if isinstance(other, int) else 0
    if isinstance(left, int) and isinstance(right, int):
        if operator == "*":
            _check_bits(left.bit_length() + right.bit_length())
        elif operator == "**":
            _check_bits(left.bit_length() * max(right, 0))
    return sum(sizes)


def _check_bits(bits: int) -> None:
    if bits > MAX_BITS:
        raise SecurityError("it makes too large a number")


def cost_of_format(text: str, values: Iterable[Any]) -> int:
    """Characters that formatting may make, with % or with braces."""
    if _WIDE_PERCENT.search(text) or _WIDE_BRACES.search(text):
        raise SecurityError("it formats with too large a width")
    fields = text.count("%") + text.count("{")
    return len(text) + fields * (MAX_WIDTH + sum(map(size_of, values)))


def cost_of_sorting(items: list[Any]) -> int:
    """Characters that putting items in order may look at."""
    return size_of(items) * len(items).bit_length()


def cost_of_sum(items: list[Any]) -> int:
    """Items of lists that adding them up, one after the other, may copy."""
    numbers = all(isinstance(item, int | float) for item in counted(items))
    return 0 if numbers else size_of(items) * len(items)


def cost_of_replace(text: Any, old: Any, new: Any) -> int:
    """Characters that text.replace(old, new) may make."""
    if not all(isinstance(value, str) for value in (text, old, new)):
        return 0
    return int(len(text) + text.count(old) * len(new))


def cost_of_lines(text: str) -> int:
    """Characters that padding or indenting each line or tab may make."""
    return len(text) + MAX_WIDTH * (1 + text.count("\n") + text.count("\t"))
