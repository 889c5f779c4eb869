"""Tools, calls and their results as text, for chat templates that know nothing of them.

The form is that of Hermes and Qwen: <tool_call> and <tool_response> around JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from llama3jit.text.messages import Message, plain_data, plain_messages
from llama3jit.text.tool_calls import CLOSE, OPEN

_PROMPT = """You can call functions. These are there, one a line, as JSON:
<tools>
{tools}
</tools>
To call one, write its name and its arguments as JSON, and nothing else:
{open}
{{"name": "...", "arguments": {{...}}}}
{close}
What it gives comes back between <tool_response> and </tool_response>."""


def with_arguments_as_data(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The same, with the arguments of calls as dicts where they are JSON as text, which is how
    OpenAI has them: templates write them as JSON themselves. The role "function" becomes "tool"."""
    copies = plain_messages(messages)
    for message in copies:
        if message["role"] == "function":
            message["role"] = "tool"
        legacy = message.pop("function_call", None)
        if legacy is not None and not message.get("tool_calls"):
            message["tool_calls"] = [{"type": "function", "function": legacy}]
        calls = message.get("tool_calls") or []
        for call in calls if isinstance(calls, list) else []:
            function = call.get("function", call) if isinstance(call, dict) else None
            if isinstance(function, dict) and isinstance(function.get("arguments"), str):
                function["arguments"] = _data(function["arguments"])
    return copies


def as_plain_chat(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Messages of system, user and assistant alone that say the same: the tools stand in the system
    prompt, calls in the assistant's texts, results in the user's."""
    chat: list[dict[str, Any]] = []
    for message in with_arguments_as_data(messages):
        role, content = message["role"], message.get("content") or ""
        if message.get("tool_calls"):
            content = "\n".join([*([content] if content else []), *_calls(message["tool_calls"])])
        elif role == "tool":
            role, content = "user", f"<tool_response>\n{content}\n</tool_response>"
            if chat and chat[-1].get("is_result"):
                chat[-1]["content"] += f"\n{content}"
                continue
        chat.append({"role": role, "content": content, "is_result": message["role"] == "tool"})
    for message in chat:
        del message["is_result"]
    if tools:
        text = _PROMPT.format(tools="\n".join(map(_json, tools)), open=OPEN, close=CLOSE)
        if chat[0]["role"] in ("system", "developer"):
            chat[0]["content"] = f"{chat[0]['content']}\n\n{text}".lstrip()
        else:
            chat.insert(0, {"role": "system", "content": text})
    return chat


def _calls(calls: Any) -> list[str]:
    texts = []
    for call in calls:
        function = call.get("function", call)
        shown = {"name": function.get("name"), "arguments": function.get("arguments", {})}
        texts.append(f"{OPEN}\n{_json(shown)}\n{CLOSE}")
    return texts


def _json(value: Any) -> str:
    return json.dumps(plain_data(value, "tools"), ensure_ascii=False)


def _data(arguments: str) -> Any:
    try:
        data = json.loads(arguments)
    except ValueError:
        return arguments
    return data if isinstance(data, dict) else arguments
