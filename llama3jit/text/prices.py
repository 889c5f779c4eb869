"""What a chat template pays for the methods, filters and tests that it calls, before they run."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from jinja2 import Environment
from jinja2.exceptions import SecurityError
from jinja2.nodes import EvalContext
from jinja2.runtime import Context

from llama3jit.text.budget import (
    charged,
    charged_as_text,
    check_widths,
    cost_of_format,
    cost_of_lines,
    cost_of_replace,
    cost_of_sorting,
    cost_of_sum,
    counted,
    size_of,
    spend,
)

if TYPE_CHECKING:
    from collections.abc import Callable

PADDING_METHODS = frozenset({"ljust", "rjust", "center", "zfill", "expandtabs"})
PADDING_FILTERS = frozenset({"center", "indent", "wordwrap", "batch", "slice", "round"})
STRIPPING = frozenset({"strip", "lstrip", "rstrip", "trim"})
# Filters that write out whole values, however deep; those of text make text of anything.
WRITING_FILTERS = frozenset(
    {"string", "pprint", "urlencode", "xmlattr", "escape", "e", "forceescape", "safe", "list"}
    | {"capitalize", "center", "format", "indent", "lower", "replace", "striptags", "title"}
    | {"trim", "truncate", "upper", "urlize", "wordcount", "wordwrap"}
)
SORTING_FILTERS = frozenset({"sort", "dictsort", "groupby", "max", "min", "unique"})
# Tests that look at whole values: comparisons, and those of text.
COMPARING_TESTS = frozenset(
    {"==", "eq", "equalto", "!=", "ne", ">", "gt", "greaterthan", ">=", "ge"}
    | {"<", "lt", "lessthan", "<=", "le", "in", "lower", "upper"}
)


def paid_method(
    text: str, name: str, arguments: tuple[Any, ...], named: dict[str, Any]
) -> tuple[Any, ...]:
    """The arguments for a method of str, after what it may make is paid for."""
    if name in PADDING_METHODS:
        check_widths([*arguments, *named.values()])
        spend(cost_of_lines(text))
    elif name in STRIPPING:
        spend(len(text) * size_of([*arguments, *named.values()]))
    elif name == "replace" and len(arguments) >= 2:
        spend(cost_of_replace(text, arguments[0], arguments[1]))
    elif name == "join" and arguments:
        items = list(counted(arguments[0]))
        spend(len(text) * len(items) + size_of(items))
        return (items, *arguments[1:])
    elif name in ("format", "format_map"):
        spend(cost_of_format(text, [*arguments, *named.values()]))
    elif name in ("encode", "translate"):
        raise SecurityError(f"it calls str.{name}")
    return arguments


def paid_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that pays for its result, and first for what it could blow up."""

    @functools.wraps(function)  # keeps jinja's marks of functions that take a context
    def paid(*arguments: Any, **named: Any) -> Any:
        spend()
        values = [*arguments, *named.values()]
        texts = [value for value in values if isinstance(value, str)]
        if name in PADDING_FILTERS:
            check_widths(value for value in values if value not in texts[:1])
            spend(sum(map(cost_of_lines, texts)))
        if name in WRITING_FILTERS:
            spend(sum(map(size_of, values)))
        if name in STRIPPING and len(texts) >= 2:
            spend(len(texts[0]) * len(texts[1]))
        elif name == "replace" and len(texts) >= 3:
            spend(cost_of_replace(*texts[:3]))
        elif name == "format" and texts:
            spend(cost_of_format(texts[0], values))
        elif name == "join":
            arguments, named = _paid_join(*arguments, **named), {}
        elif name in SORTING_FILTERS or name == "sum":
            # The environment or a context comes first; the items are what can be gone through.
            at = 1 if isinstance(arguments[0], Environment | Context | EvalContext) else 0
            items = arguments[at]
            if not isinstance(items, dict):
                items = list(counted(items))
                arguments = (*arguments[:at], items, *arguments[at + 1 :])
            price = cost_of_sum if name == "sum" else cost_of_sorting
            spend(price(list(items.items()) if isinstance(items, dict) else items))
        elif name in ("batch", "slice"):
            return charged_as_text(list(function(*arguments, **named)))
        return charged(function(*arguments, **named))

    return paid


def paid_test(function: Callable[..., Any]) -> Callable[..., bool]:
    """A test that pays for what it looks at."""

    @functools.wraps(function)
    def paid(*arguments: Any) -> bool:
        spend(size_of(arguments))
        return bool(function(*arguments))

    return paid


def _paid_join(
    context: Any, items: Any, d: Any = "", attribute: Any = None
) -> tuple[Any, Any, Any, Any]:
    """The arguments of the filter `join` (named as jinja names them), the items in a list."""
    items = list(counted(items))
    spend(size_of(items) + len(items) * size_of(d))
    return context, items, d, attribute
