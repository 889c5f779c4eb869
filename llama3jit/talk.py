"""The state of a conversation, and a turn of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama3jit.arguments import Message
    from llama3jit.generation import Generation
    from llama3jit.results import StreamPart
    from llama3jit.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Talk:
    """What a conversation is, between its turns.

    messages: all of them.  left_out_turns, left_out_tokens: how much of the oldest is no longer in
    the prompt.  tokens: the last prompt and its reply, as they are in the cache.  marks: how many
    of `tokens` there were after each turn; 0 where that is no longer known.
    """

    messages: tuple[Message, ...] = ()
    left_out_turns: int = 0
    left_out_tokens: int = 0
    tokens: tuple[int, ...] = ()
    marks: tuple[int, ...] = ()


@dataclass(slots=True)
class Turn:
    """A turn under way: what was there before it, the messages with the user's, and the reply."""

    before: Talk
    messages: tuple[Message, ...]
    generation: Generation
    text: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    def take(self, part: StreamPart) -> bool:
        """Note a part of the reply; whether it was the last."""
        self.text.append(part.text)
        if part.token is not None:
            self.tokens.append(part.token)
        return part.result is not None

    def after(self) -> Talk:
        """The conversation with what there is of the reply."""
        prompt = self.generation.prompt
        before = self.before.tokens
        known = tuple(prompt.tokens[: len(before)]) == before
        marks = self.before.marks if known else (0,) * len(self.before.marks)
        tokens = (*prompt.tokens, *self.tokens)
        return Talk(
            messages=(*self.messages, {"role": "assistant", "content": "".join(self.text)}),
            left_out_turns=prompt.dropped_turns,
            left_out_tokens=prompt.dropped_tokens,
            tokens=tokens,
            marks=(*marks, len(tokens)),
        )


def continued(tokenizer: Tokenizer, held: Sequence[int], prompt: list[int]) -> list[int]:
    """`prompt`, beginning with the ids `held` where these are the same text: what a model wrote may
    be cut into tokens in another way than the same text read."""
    if not held or prompt[: len(held)] == list(held):
        return prompt
    text = b"".join(map(tokenizer.token_bytes, held))
    at = size = 0
    while at < len(prompt) and size < len(text):
        size += len(tokenizer.token_bytes(prompt[at]))
        at += 1
    same = size == len(text) and b"".join(map(tokenizer.token_bytes, prompt[:at])) == text
    special = tokenizer.special_ids
    if not same or [i for i in held if i in special] != [i for i in prompt[:at] if i in special]:
        return prompt
    return [*held, *prompt[at:]]
