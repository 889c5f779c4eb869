"""What has been said, and how replies are made."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

from llama3jit.overflow import split_turns

if TYPE_CHECKING:
    from llama3jit.api import Llama
    from llama3jit.arguments import Message
    from llama3jit.results import Result


@dataclass(slots=True)
class Conversation:
    """Messages of the user and replies, in turns; the system prompt stands apart. `parameters` are
    sampling arguments. `left_out` counts the oldest turns, which the model no longer sees."""

    system: str | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)
    left_out: int = 0

    def turns(self) -> list[list[Message]]:
        """The messages by turns: one of the user, and what follows it."""
        head, turns = split_turns(self.messages)
        return [head, *turns] if head else turns

    def prompt(self, *more: Message) -> list[Message]:
        """What the model is shown, with `more` at the end."""
        turns = self.turns()[self.left_out :]
        return [*self._head(), *chain.from_iterable(turns), *more]

    def take_back(self, turns: int) -> list[Message]:
        """Remove the last turns, and give their messages."""
        all_turns = self.turns()
        kept = max(0, len(all_turns) - turns)
        self.messages = list(chain.from_iterable(all_turns[:kept]))
        self.left_out = min(self.left_out, max(0, kept - 1))
        return list(chain.from_iterable(all_turns[kept:]))

    def clear(self) -> None:
        """Forget the messages."""
        self.messages, self.left_out = [], 0

    def _head(self) -> list[Message]:
        return [{"role": "system", "content": self.system}] if self.system else []


@dataclass(slots=True)
class Talk:
    """A conversation with a model, and how it is shown."""

    llm: Llama
    conversation: Conversation
    verbose: bool = False
    at_terminal: bool = False  # a person who can interrupt a reply, and put an error right
    wraps: bool = True
    keeps_history: bool = True
    over: bool = False
    failures: int = 0
    unsent: str = ""  # what stands at the next prompt, to be changed and sent
    last: Result | None = None
    used: int | None = None  # tokens of the context; None when they have to be counted

    def changed(self) -> None:
        """To be called when the conversation changed by anything but a reply."""
        self.used = None

    def context_used(self) -> int:
        """Tokens of the context that the conversation takes. Raises TemplateError."""
        if self.used is None:
            prompt = self.conversation.prompt()
            self.used = len(self.llm.tokenize_chat(prompt)) if prompt else 0
        return self.used
