"""tools=, tool_choice= and their old forms functions=, function_call=: what the model is told, and
what it has to write."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from llama3jit.errors import InvalidArgumentError
from llama3jit.text.tool_calls import MARKERS, PYTHON

if TYPE_CHECKING:
    from llama3jit.api import Llama
    from llama3jit.arguments import Messages

CHOICES = ("none", "auto", "required")


@dataclass(frozen=True, slots=True)
class Tools:
    """tools: {"type": "function", "function": {"name", "description", "parameters"}} each.
    forced: the names of which one has to be called; empty if the model may answer.  legacy: they
    came as functions, and calls go back as `function_call` too."""

    tools: tuple[Mapping[str, Any], ...] = ()
    forced: tuple[str, ...] = ()
    legacy: bool = False

    @property
    def names(self) -> list[str]:
        """The names of all."""
        return [tool["function"]["name"] for tool in self.tools]


def read_tools(functions: Any, function_call: Any, tools: Any, tool_choice: Any) -> Tools:
    """Check what was given. Without tools to call, as with tool_choice="none", there are none."""
    legacy = functions is not None or function_call is not None
    if legacy and (tools is not None or tool_choice is not None):
        raise InvalidArgumentError(
            "functions or function_call is given beside tools or tool_choice: give the latter alone"
        )
    if legacy:
        tools = [{"type": "function", "function": function} for function in _list(functions)]
        tool_choice = function_call
    where = "functions" if legacy else "tools"
    found = tuple(_checked(tool, f"{where}[{i}]") for i, tool in enumerate(_list(tools, where)))
    names = [tool["function"]["name"] for tool in found]
    if len(set(names)) < len(names):
        raise InvalidArgumentError(f"{where} has a name twice: {', '.join(names)}")
    given = "function_call" if legacy else "tool_choice"
    forced = _forced(tool_choice, names, given)
    return Tools() if tool_choice == "none" else Tools(found, forced, legacy)


def _forced(choice: Any, names: Sequence[str], given: str) -> tuple[str, ...]:
    if isinstance(choice, Mapping):
        name = choice.get("function", choice)
        name = name.get("name") if isinstance(name, Mapping) else None
        if name not in names:
            raise InvalidArgumentError(
                f"{given} names {name!r:.60}, which is not among the tools ({', '.join(names)})"
            )
        return (str(name),)
    if choice is not None and choice not in CHOICES:
        raise InvalidArgumentError(
            f"{given} is {choice!r:.60}: expected {', '.join(map(repr, CHOICES))}, or "
            '{"type": "function", "function": {"name": ...}}'
        )
    if choice == "required":
        if not names:
            raise InvalidArgumentError(f"{given} is 'required', and there are no tools to call")
        return tuple(names)
    return ()


def _list(value: Any, name: str = "functions") -> Sequence[Any]:
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise InvalidArgumentError(f"{name} is {value!r:.60}: expected a list of dicts")
    return value


def _checked(tool: Any, where: str) -> Mapping[str, Any]:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InvalidArgumentError(
            f'{where} is {tool!r:.80}: expected {{"type": "function", "function": {{"name": ..., '
            f'"parameters": ...}}}}'
        )
    if tool.get("type", "function") != "function":
        raise InvalidArgumentError(
            f"{where} has the type {tool['type']!r:.40}: expected 'function'"
        )
    if not isinstance(function.get("parameters", {}), Mapping):
        raise InvalidArgumentError(f"{where} has parameters that are no JSON schema")
    return dict(tool)


def encoder(llm: Llama, tools: Tools, messages: Messages) -> Callable[[Messages], list[int]] | None:
    """What makes a prompt of messages that tells of the tools; None: the template alone does. A
    template that knows no tools is given them in the system prompt."""
    from llama3jit.text.tool_prompt import as_plain_chat, with_arguments_as_data

    template = llm._template
    if not tools.tools and not any(map(_tells_of_calls, messages)):
        return None
    if not template.takes_tools:
        return lambda some: template.encode(as_plain_chat(some, tools.tools))
    encode = partial(template.encode, tools=tools.tools) if tools.tools else template.encode
    return lambda some: encode(with_arguments_as_data(some))


def _tells_of_calls(message: Any) -> bool:
    return isinstance(message, Mapping) and (
        message.get("role") in ("tool", "function")
        or any(message.get(key) for key in ("tool_calls", "function_call"))
    )


def shown_marks(llm: Llama, tools: Tools) -> frozenset[int]:
    """The special tokens that mark calls: the parser has to see them."""
    if not tools.tools:
        return frozenset()
    ids = (llm._tokenizer.find_special(mark) for mark in MARKERS)
    return frozenset(token for token in ids if token is not None)


def forced_format(llm: Llama, tools: Tools) -> dict[str, Any]:
    """The response format of a call of one of the forced tools, with arguments to its schema."""
    key = "arguments" if llm._tokenizer.find_special(PYTHON) is None else "parameters"
    shared: dict[str, dict[str, Any]] = {}
    calls = []
    for tool in tools.tools:
        name = tool["function"]["name"]
        if name not in tools.forced:
            continue
        parameters = dict(tool["function"].get("parameters") or {"type": "object"})
        for group in ("$defs", "definitions"):
            _share(shared, group, parameters.pop(group, {}))
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": name}, key: parameters},
                "required": ["name", key],
                "additionalProperties": False,
            }
        )
    schema = {**(calls[0] if len(calls) == 1 else {"anyOf": calls}), **shared}
    return {"type": "json_schema", "json_schema": {"schema": schema}}


def _share(shared: dict[str, dict[str, Any]], group: str, definitions: Mapping[str, Any]) -> None:
    """References are from the root of a schema: bring a tool's definitions there."""
    for name, definition in definitions.items():
        if shared.setdefault(group, {}).setdefault(name, definition) != definition:
            raise InvalidArgumentError(
                f"two tools have different schemas by the name {group}/{name}: rename one of them"
            )
