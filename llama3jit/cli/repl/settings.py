"""What can be set and shown: sampling parameters, the system prompt, switches."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from llama3jit.arguments import Sampling, split_sampling
from llama3jit.checks import did_you_mean
from llama3jit.cli.repl.entry import unfenced
from llama3jit.cli.repl.rendering import say
from llama3jit.errors import InvalidArgumentError
from llama3jit.overflow import check_overflow

if TYPE_CHECKING:
    from collections.abc import Iterable

    from llama3jit.cli.repl.conversation import Talk

# What `/set WORD` does: the field of Talk, its value, what is said.
SWITCHES = {
    "verbose": ("verbose", True, "times and speeds follow each reply"),
    "quiet": ("verbose", False, "no times and speeds after replies"),
    "wordwrap": ("wraps", True, "replies are broken between words"),
    "nowordwrap": ("wraps", False, "replies are broken by the terminal"),
    "history": ("keeps_history", True, "what is typed is kept for the next time"),
    "nohistory": ("keeps_history", False, "what is typed from here on is not kept"),
}
SHOWN = ("parameters", "model", "system", "template", "context")
SETTING = """\
/set parameter NAME VALUE  a sampling parameter; without VALUE: its default
/set system TEXT           the system prompt; without TEXT: none
/set verbose|quiet         times and speeds after each reply
/set wordwrap|nowordwrap   break replies between words
/set history|nohistory     keep what is typed for the next time
parameters:"""
_SWITCH_WORDS = {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}


def parameter_names() -> dict[str, str]:
    """The sampling arguments that can be typed, and their types as written."""
    types = {
        name: getattr(kind, "__forward_arg__", str(kind))
        for name, kind in Sampling.__annotations__.items()
    }
    return {name: kind for name, kind in types.items() if "Callable" not in kind}


def set_(talk: Talk, rest: str) -> None:
    """/set, by its first word."""
    word, _, value = rest.partition(" ")
    value = unfenced(value)
    if not word:
        say(f"{SETTING} {' '.join(parameter_names())}")
    elif word == "system":
        _set_system(talk, value)
    elif word in SWITCHES:
        field, state, told = SWITCHES[word]
        setattr(talk, field, state)
        say(told)
    elif word == "parameter":
        name, _, value = value.partition(" ")
        _set_parameter(talk, name, value.strip())
    else:
        _set_parameter(talk, word, value)


def settable(words: list[str]) -> Iterable[str]:
    """What may follow these words of /set."""
    if not words:
        return ["parameter", "system", *SWITCHES]
    return parameter_names() if words == ["parameter"] else []


def show(talk: Talk, rest: str) -> None:
    """/show, by its word."""
    if rest not in SHOWN:
        raise InvalidArgumentError(f"/show {rest or 'what'}? expected one of {', '.join(SHOWN)}")
    say(_shown(talk, rest))


def showable(words: list[str]) -> Iterable[str]:
    """What may follow /show."""
    return [] if words else SHOWN


def system(talk: Talk, rest: str) -> None:
    """/system: show it, or set it."""
    if rest:
        _set_system(talk, rest)
    else:
        say(_shown(talk, "system"))


def whole_number(text: str, default: int) -> int:
    """A count that was typed: 1 or more; `default` for none."""
    if text and not (text.isdecimal() and 0 < int(text[:9]) == int(text)):
        raise InvalidArgumentError(f"{text!r:.40} is no count; expected a whole number from 1 on")
    return int(text) if text else default


def _set_system(talk: Talk, text: str) -> None:
    talk.conversation.system = text or None
    talk.changed()
    say("the system prompt is set" if text else "there is no system prompt now")


def _set_parameter(talk: Talk, name: str, text: str) -> None:
    """Set one, or, without a value, set it back to its default."""
    known = parameter_names()
    if not name:
        raise InvalidArgumentError(f"/set parameter which? expected one of {', '.join(known)}")
    if name not in known:
        if name in Sampling.__annotations__:
            raise InvalidArgumentError(f"{name} is a Python function; it cannot be typed here")
        hint = did_you_mean(name, known, "; /set lists them")
        raise InvalidArgumentError(f"there is no parameter {name!r:.40}{hint}")
    value = parsed(text, known[name])
    parameters = {**talk.conversation.parameters, name: value}
    if value is None:
        del parameters[name]
    split_sampling(parameters)  # type: ignore[arg-type]
    check_overflow(parameters.get("on_overflow", "error"))
    talk.conversation.parameters = parameters
    say(f"{name} {'has its default' if value is None else f'is {json.dumps(value)}'}")


def parsed(text: str, kind: str) -> Any:
    """The value that was typed for a parameter of that type: JSON, a word for a switch, or a
    string; None for no value, or the word "default" or "none"."""
    if text in ("", "default", "none"):
        return None
    if "bool" in kind and text.lower() in _SWITCH_WORDS:
        return _SWITCH_WORDS[text.lower()]
    if kind.startswith(("str", "Sequence[str]")) and text[0] not in '"[':
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(value, dict) and value and all(key.isdecimal() for key in value):
        return {int(key): item for key, item in value.items()}
    return value


def _shown(talk: Talk, what: str) -> str:
    if what == "parameters":
        given = talk.conversation.parameters
        return "\n".join(f"{k} {json.dumps(v)}" for k, v in given.items()) or "all by default"
    if what == "system":
        return talk.conversation.system or "there is no system prompt"
    if what == "template":
        return talk.llm.chat_template or "there is no chat template"
    if what == "context":
        return context_line(talk)
    return _model(talk)


def context_line(talk: Talk) -> str:
    """How full the context is."""
    used, size = talk.context_used(), talk.llm.n_ctx
    left_out = talk.conversation.left_out
    more = f"; the oldest turns, {left_out}, are no longer shown to the model" if left_out else ""
    return f"{used} of {size} tokens ({100 * used / size:.0f} %){more}"


def _model(talk: Talk) -> str:
    """What the file says of the model, and where it runs."""
    metadata = talk.llm.metadata
    rows = {
        key: metadata[f"general.{key}"]
        for key in ("name", "architecture", "size_label", "license")
        if f"general.{key}" in metadata
    }
    megabytes = sum(talk.llm.memory.values()) / 1e6
    rows |= {
        "vocabulary": f"{talk.llm.vocab_size} tokens",
        "context": f"{talk.llm.n_ctx} tokens",
        "device": talk.llm.device,
        "memory": f"{megabytes:.1f} MB",
    }
    return "\n".join(f"{key:<12}  {value}" for key, value in rows.items())
