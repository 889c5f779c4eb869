"""The commands, as a table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llama3jit.cli.repl import looking, settings
from llama3jit.cli.repl.answering import answer_again
from llama3jit.cli.repl.entry import unfenced
from llama3jit.cli.repl.rendering import say
from llama3jit.cli.streams import one_line
from llama3jit.errors import InvalidArgumentError, Llama3JitError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from llama3jit.cli.repl.conversation import Talk


@dataclass(frozen=True, slots=True)
class Command:
    """run: gets what follows the name.  completes: from the words before to what may come next.
    piped: whether it is there without a terminal; what is piped in may not write files, say."""

    run: Callable[[Talk, str], None]
    takes: str
    about: str
    completes: Callable[[list[str]], Iterable[str]] | None = None
    takes_path: bool = False
    piped: bool = False


def run_command(talk: Talk, text: str) -> None:
    """Run a command; errors are said."""
    name, _, rest = text.partition(" ")
    command = COMMANDS.get(ALIASES.get(name, name))
    if command is None or not (talk.at_terminal or command.piped):
        say(f"{one_line(name)} is no command; /help lists them, //text sends /text")
        return
    try:
        command.run(talk, unfenced(rest))
    except Llama3JitError as error:
        say(f"llama3jit: {one_line(str(error))}")


def _help(talk: Talk, rest: str) -> None:
    shown = {
        f"{name} {command.takes}".rstrip(): command.about
        for name, command in COMMANDS.items()
        if talk.at_terminal or command.piped
    }
    if rest:
        name = f"/{rest.removeprefix('/')}"
        name = ALIASES.get(name, name)
        shown = {usage: about for usage, about in shown.items() if usage.split()[0] == name}
        if not shown:
            raise InvalidArgumentError(f"{name} is no command; /help lists them")
    width = max(map(len, shown))
    say("\n".join(f"{usage:<{width}}  {about}" for usage, about in shown.items()))
    if not rest:
        say(KEYS if talk.at_terminal else STOPPING)


def _bye(talk: Talk, rest: str) -> None:
    talk.over = True


def _clear(talk: Talk, rest: str) -> None:
    talk.conversation.clear()
    talk.changed()
    say("the conversation is forgotten")


def _regen(talk: Talk, rest: str) -> None:
    if not talk.conversation.messages:
        raise InvalidArgumentError("there is no turn yet to answer again")
    answer_again(talk)


def _undo(talk: Talk, rest: str) -> None:
    count = settings.whole_number(rest, 1)
    there = len(talk.conversation.turns())
    if count > there:
        raise InvalidArgumentError(f"the conversation has {there} turns; {count} cannot be undone")
    talk.conversation.take_back(count)
    talk.changed()
    say(f"{looking.turns(count)} taken back; {looking.turns(there - count)} left")


def _save(talk: Talk, rest: str) -> None:
    from llama3jit.cli.repl.saving import save

    path = _path(rest, "/save FILE")
    save(talk.conversation, path)
    say(f"saved {looking.turns(len(talk.conversation.turns()))} to {path}")


def _load(talk: Talk, rest: str) -> None:
    from llama3jit.cli.repl.saving import load

    path = _path(rest, "/load FILE")
    talk.conversation = load(path)
    talk.changed()
    say(f"loaded {looking.turns(len(talk.conversation.turns()))} from {path}; /history shows them")


def _edit(talk: Talk, rest: str) -> None:
    from llama3jit.cli.repl.editor import edit

    talk.unsent = rest
    talk.unsent = edit(rest)


def _path(rest: str, usage: str) -> Path:
    if not rest:
        raise InvalidArgumentError(f"expected a file: {usage}")
    return Path(rest).expanduser()


def _names(words: list[str]) -> Iterable[str]:
    return [] if words else [name.removeprefix("/") for name in COMMANDS]


COMMANDS = {
    "/help": Command(_help, "[COMMAND]", "this list", _names, piped=True),
    "/bye": Command(_bye, "", "leave (also /exit, /quit, Ctrl-D)", piped=True),
    "/clear": Command(_clear, "", "forget the conversation", piped=True),
    "/regen": Command(_regen, "", "answer the last turn again"),
    "/undo": Command(_undo, "[N]", "take the last turn back, or the last N"),
    "/edit": Command(_edit, "[TEXT]", "write a message in $EDITOR"),
    "/set": Command(settings.set_, "NAME VALUE", "see /set", settings.settable),
    "/show": Command(settings.show, "NAME", "see /show", settings.showable),
    "/system": Command(settings.system, "[TEXT]", "the system prompt: show it, or set it"),
    "/save": Command(_save, "FILE", "write the conversation to a file", takes_path=True),
    "/load": Command(_load, "FILE", "go on with a saved conversation", takes_path=True),
    "/history": Command(looking.history, "[N]", "the conversation, or its last N turns"),
    "/stats": Command(looking.stats, "", "times and speeds of the last reply, memory"),
    "/template": Command(looking.template, "", "the prompt as the model gets it"),
    "/tokens": Command(looking.tokens, "TEXT", "ids and pieces of a text"),
    "/probs": Command(
        looking.probs, "[N] [TEXT]", "the likeliest next tokens: after TEXT, or the last reply"
    ),
}
ALIASES = {"/exit": "/bye", "/quit": "/bye", "/?": "/help"}

STOPPING = "Ctrl-C stops a reply and keeps what there is of it. //text sends /text."
KEYS = f'''\
{STOPPING}
""" begins and ends a message of several lines; so does \\ at the end of a line. What is pasted is
one message. Tab completes, Ctrl-X Ctrl-E opens $EDITOR, Ctrl-R searches what was typed before.'''
