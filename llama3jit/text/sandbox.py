"""A jinja environment for chat templates, which come with model files and are not to be trusted.

It renders as transformers does (trimmed blocks, loop controls, `generation` blocks, tojson,
raise_exception, strftime_now), in jinja's immutable sandbox. Besides, a render has a budget.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import TYPE_CHECKING, Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Namespace
from jinja2.visitor import NodeTransformer

from llama3jit.text.budget import (
    MAX_OUTPUT,
    budget,
    charged,
    charged_as_text,
    check_widths,
    cost_of_operator,
    size_of,
    spend,
)
from llama3jit.text.prices import COMPARING_TESTS, paid_filter, paid_method, paid_test

if TYPE_CHECKING:
    from jinja2 import Template
    from jinja2.parser import Parser


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

    def __repr__(self) -> str:
        return "<namespace>"  # what it holds may be large, or itself


class _ChargedContainers(NodeTransformer):
    """Puts a price on every list, tuple and dict that an expression makes, for all that is in it:
    without it [x, x] of [x, x] of ... grows beyond any bound at little cost."""

    def visit_List(self, node: nodes.List | nodes.Dict) -> nodes.Expr:
        """The node, charged."""
        self.generic_visit(node)
        return _charging(node)

    visit_Dict = visit_List

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:
        """The same, except where the tuple is what is assigned to."""
        self.generic_visit(node)
        return _charging(node) if node.ctx == "load" else node


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
            cycler=_cycler,
            namespace=SafeNamespace,
            raise_exception=_raise_exception,
            strftime_now=_strftime_now,
        )
        self.filters["tojson"] = _tojson
        self.filters = {name: paid_filter(name, f) for name, f in self.filters.items()}
        self.filters["charged_as_text"] = charged_as_text
        tests: dict[str, Any] = self.tests
        tests |= {name: paid_test(tests[name]) for name in COMPARING_TESTS}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """The syntax tree, with a price on every round of a loop and call of a macro, for the text
        in it too, and on what `~` joins and comparisons look at."""
        tree = super()._parse(source, name, filename)
        for node in list(tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock))):
            size = sum(len(text.data) for text in node.find_all(nodes.TemplateData))
            method = nodes.EnvironmentAttribute("spend_characters")
            price = nodes.Call(method, [nodes.Const(size)], [], None, None)
            node.body.insert(0, nodes.ExprStmt(price, lineno=node.lineno))  # type: ignore[attr-defined]
        _ChargedContainers().visit(tree)
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
            arguments = paid_method(owner, method.__name__, arguments, named)
        elif isinstance(owner, list | tuple):
            spend(size_of(owner) + size_of(arguments))  # it looks for an item
        elif isinstance(owner, int | float | bytes):
            raise SecurityError(f"it calls a method of {type(owner).__name__}")
        elif isinstance(function, Macro) and (function.catch_varargs or function.catch_kwargs):
            spend(size_of(arguments) + size_of(named))  # they become a tuple, a dict
        return charged(super().call(context, function, *arguments, **named))

    def getitem(self, obj: Any, argument: Any) -> Any:
        """`obj[argument]`: a key is hashed, and one that is missing is named in the error."""
        if not isinstance(argument, int | str):
            spend(size_of(argument))
        return super().getitem(obj, argument)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """An arithmetic operator."""
        spend(cost_of_operator(operator, left, right))
        return super().call_binop(context, operator, left, right)


def _charging(node: nodes.Expr) -> nodes.Expr:
    return nodes.Filter(node, "charged_as_text", [], [], None, None, lineno=node.lineno)


def _range(*arguments: int) -> range:
    items = range(*arguments)
    try:
        spend(steps=len(items))
    except OverflowError:
        raise SecurityError("it takes too many steps") from None
    return items


def _dict(*items: Any, **named: Any) -> dict[Any, Any]:
    return charged_as_text(dict(*items, **named))  # type: ignore[no-any-return]


def _cycler(*items: Any) -> Cycler:
    return Cycler(*charged_as_text(items))


def _raise_exception(message: object) -> None:
    raise TemplateError(str(charged_as_text(message)))


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
