"""The conversation at a terminal, from the first prompt to the last."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Protocol

from llama3jit.cli.repl.answering import take
from llama3jit.cli.repl.rendering import say
from llama3jit.errors import Llama3JitError

if TYPE_CHECKING:
    from llama3jit.cli.repl.conversation import Talk


class Input(Protocol):
    """Where messages come from."""

    def read(self, text: str = "") -> str:
        """The next, edited from `text`; raises EOFError at the end, KeyboardInterrupt."""


def knows_escapes() -> bool:
    """Whether lines can be edited on this terminal by escape sequences."""
    if not (sys.stdin.isatty() and (sys.stdout.isatty() or sys.stderr.isatty())):
        return False
    return os.name == "nt" or os.environ.get("TERM", "dumb").lower() not in ("", "dumb", "unknown")


def open_input(talk: Talk) -> Input:
    """The input that suits the terminal."""
    if knows_escapes():
        from llama3jit.cli.repl.typed import TypedInput

        return TypedInput(lambda: meter(talk), lambda: talk.keeps_history)
    from llama3jit.cli.repl.plain import PlainInput

    return PlainInput()


def run(talk: Talk, source: Input) -> None:
    """Take messages until one ends the talk."""
    while not talk.over:
        reading = True
        try:
            text, talk.unsent = talk.unsent, ""
            typed = source.read(text)
            reading = False
            take(talk, typed)
        except KeyboardInterrupt:  # at the prompt; or in a command, on the way to or from a reply
            talk.changed()
            say("\nCtrl-D or /bye leaves" if reading else "\n(stopped)")
        except EOFError:
            say("")
            return


def meter(talk: Talk) -> str:
    """How full the context is, for the line below the prompt."""
    try:
        used = talk.context_used()
    except Llama3JitError:
        return f"context of {talk.llm.n_ctx} tokens"
    return f"context {used} of {talk.llm.n_ctx} tokens ({100 * used / talk.llm.n_ctx:.0f} %)"
