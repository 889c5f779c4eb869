"""A jinja environment for chat templates, which come with model files and are not to be trusted.

It renders as transformers does (trimmed blocks, loop controls, `generation` blocks, tojson,
raise_exception, strftime_now), in jinja's immutable sandbox. Besides, a render has a budget.
"""

from __future__ import annotations

import functools
import json
import re
from datetime import datetime
from typing import TYPE_CHECKING, Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from llama3jit.text.budget import (
    MAX_OUTPUT,
    budget,
    charged,
    charged_as_text,
    check_widths,
    cost_of_format,
    cost_of_lines,
    cost_of_operator,
    cost_of_replace,
    counted,
    size_of,
    spend,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from jinja2 import Template
    from jinja2.parser import Parser

PADDING_METHODS = frozenset({"ljust", "rjust", "center", "zfill", "expandtabs"})
PADDING_FILTERS = frozenset({"center", "indent", "wordwrap", "batch", "slice", "round"})
# Filters that write out whole values, however deep.
WRITING_FILTERS = frozenset(
    {"string", "pprint", "urlencode", "xmlattr", "escape", "e", "forceescape", "safe", "list"}
)


def render(template: Template, variables: dict[str, Any]) -> str:
    """The text of a compiled template, within the budget. Raises what jinja raises."""
    given = size_of(variables)
    parts, size = [], 0
    with budget(given):
        for part in template.generate(variables):
            parts.append(part)
            size += len(part)
            if size > MAX_OUTPUT + 4 * given:
                raise SecurityError("its output is too long")
    return "".join(parts)


class GenerationBlock(Extension):
    """`{% generation %}...{% endgeneration %}` marks what the model said; rendered as it stands."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        """The node for one such block."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class SafeNamespace(Namespace):
    """jinja's namespace without names that reach Python's insides."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise SecurityError(f"it sets the attribute {name!r} of a namespace")
        super().__setitem__(name, value)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Compiles templates; see the module. Safe to share between threads."""

    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationBlock, loopcontrols],
            finalize=charged_as_text,
            cache_size=0,
        )
        # lipsum is no use to a chat; its attributes are the best-known way out of a sandbox.
        del self.globals["lipsum"]
        self.globals.update(
            range=_range,
            dict=_dict,
            namespace=SafeNamespace,
            raise_exception=_raise_exception,
            strftime_now=_strftime_now,
        )
        self.filters["tojson"] = _tojson
        self.filters = {name: _paid_filter(name, f) for name, f in self.filters.items()}
        self.filters["charged_as_text"] = charged_as_text

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """The syntax tree, with a price on every round of a loop and call of a macro, for the text
        in it too, and on what `~` joins and comparisons look at."""
        tree = super()._parse(source, name, filename)
        for node in list(tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock))):
            size = sum(len(text.data) for text in node.find_all(nodes.TemplateData))
            method = nodes.EnvironmentAttribute("spend_characters")
            price = nodes.Call(method, [nodes.Const(size)], [], None, None)
            node.body.insert(0, nodes.ExprStmt(price, lineno=node.lineno))  # type: ignore[attr-defined]
        for concat in list(tree.find_all(nodes.Concat)):
            concat.nodes = [_charging(operand) for operand in concat.nodes]
        for compare in list(tree.find_all(nodes.Compare)):
            compare.expr = _charging(compare.expr)
            for operand in compare.ops:
                operand.expr = _charging(operand.expr)
        tree.set_environment(self)
        return tree

    def spend_characters(self, characters: int) -> None:
        """What compiled loops and macros call; `call` takes the step."""
        spend(characters, steps=0)

    def call(self, context: Any, function: Any, /, *arguments: Any, **named: Any) -> Any:
        """Any call in a template."""
        spend()
        # The sandbox wraps str.format.
        method = getattr(function, "__wrapped__", function)
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str):
            arguments = _paid_method(owner, method.__name__, arguments, named)
        elif isinstance(owner, int | float | bytes):
            raise SecurityError(f"it calls a method of {type(owner).__name__}")
        return charged(super().call(context, function, *arguments, **named))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """An arithmetic operator."""
        spend(cost_of_operator(operator, left, right))
        return super().call_binop(context, operator, left, right)


def _charging(node: nodes.Expr) -> nodes.Expr:
    return nodes.Filter(node, "charged_as_text", [], [], None, None, lineno=node.lineno)


def _paid_method(
    text: str, name: str, arguments: tuple[Any, ...], named: dict[str, Any]
) -> tuple[Any, ...]:
    """The arguments for a method of str, after what it may make is paid for."""
    if name in PADDING_METHODS:
        check_widths([*arguments, *named.values()])
        spend(cost_of_lines(text))
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


def _paid_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that pays for its result, and first for what it could blow up."""

    @functools.wraps(function)  # keeps jinja's marks of functions that take a context
    def paid(*arguments: Any, **named: Any) -> Any:
        spend()
        values = [*arguments, *named.values()]
        texts = [value for value in values if isinstance(value, str)]
        if name in PADDING_FILTERS:
            check_widths(value for value in values if value not in texts[:1])
            spend(sum(map(cost_of_lines, texts)))
        elif name in WRITING_FILTERS:
            spend(sum(map(size_of, arguments)))
        elif name == "replace" and len(texts) >= 3:
            spend(cost_of_replace(*texts[:3]))
        elif name == "format" and texts:
            spend(cost_of_format(texts[0], values))
        elif name == "join":
            arguments, named = _paid_join(*arguments, **named), {}
        return charged(function(*arguments, **named))

    return paid


def _paid_join(
    context: Any, items: Any, d: Any = "", attribute: Any = None
) -> tuple[Any, Any, Any, Any]:
    """The arguments of the filter `join` (named as jinja names them), the items in a list."""
    items = list(counted(items))
    spend(size_of(items) + len(items) * len(str(d)))
    return context, items, d, attribute


def _range(*arguments: int) -> range:
    items = range(*arguments)
    try:
        spend(steps=len(items))
    except OverflowError:
        raise SecurityError("it takes too many steps") from None
    return items


def _dict(*items: Any, **named: Any) -> dict[Any, Any]:
    return dict(*items, **named)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(format: str) -> str:
    if re.search(r"%[^a-zA-Z%]*\d{3}", format):
        raise SecurityError("it formats the time with too large a width")
    return datetime.now().strftime(format)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    check_widths([indent, *(separators or ())])
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    return "".join(charged(part) for part in encoder.iterencode(value))
