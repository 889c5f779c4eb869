"""Prompts that are too long: refused by the engine, or made to fit by leaving out what is oldest.

`on_overflow="shift"` happens once, before a reply begins: a reply itself ends at the end of the
context.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llama3jit.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from llama3jit.arguments import Message, OnOverflow, Sampling

CHOICES = ("error", "shift")


@dataclass(frozen=True, slots=True)
class Fitted:
    """The ids of a prompt, and how much was left out of it."""

    tokens: list[int]
    dropped_turns: int = 0
    dropped_tokens: int = 0


def check_overflow(on_overflow: object) -> None:
    """Raise InvalidArgumentError unless it is one of the choices."""
    if on_overflow not in CHOICES:
        raise InvalidArgumentError(
            f"on_overflow is {on_overflow!r:.60}; expected {', '.join(map(repr, CHOICES))}"
        )


def shifts(sampling: Sampling, default: OnOverflow) -> bool:
    """Whether a prompt that is too long is made to fit."""
    chosen = sampling.get("on_overflow") or default
    check_overflow(chosen)
    return chosen == "shift"


def room_for_reply(n_ctx: int, max_tokens: int | None) -> int:
    """Tokens of the context that a prompt leaves free: max_tokens, or a quarter of the context if
    that is not set; at most half of it."""
    if not isinstance(max_tokens, int) or max_tokens < 1:  # refused elsewhere, if it is no number
        max_tokens = n_ctx // 4
    return max(1, min(max_tokens, n_ctx // 2))


def fit_tokens(tokens: list[int], n_ctx: int, room: int, bos_id: int | None) -> Fitted:
    """Leave out the oldest tokens but BOS, as many as leave `room`."""
    head = 1 if tokens and tokens[0] == bos_id else 0
    excess = len(tokens) + room - n_ctx
    if excess <= 0:
        return Fitted(tokens)
    kept = tokens[:head] + tokens[head + excess :]
    if len(kept) == head:  # a context of a token or two
        return Fitted(tokens)
    return Fitted(kept, dropped_tokens=excess)


def fit_messages(
    messages: Sequence[Message],
    encode: Callable[[Sequence[Message]], list[int]],
    n_ctx: int,
    room: int,
    spare: int = 0,
) -> Fitted:
    """Leave out the oldest turns, as few as leave `room`; if any goes, so many that `spare` tokens
    are left too, so that the next turns change nothing before them. The system prompt and the last
    turn stay: what they do not leave room for is not made to fit.

    A turn is a message of the user and all up to the next. Takes O(log turns) renderings.
    """
    whole = encode(messages)
    if len(whole) + room <= n_ctx:
        return Fitted(whole)
    head, turns = split_turns(messages)
    n_kept = n_ctx - room - spare

    def tokens_without(dropped: int) -> list[int]:
        return encode([*head, *(message for turn in turns[dropped:] for message in turn)])

    if len(turns) < 2:
        return Fitted(whole)
    dropped = bisect_left(
        range(len(turns) - 1), True, lo=1, key=lambda n: len(tokens_without(n)) <= n_kept
    )
    kept = tokens_without(dropped)
    return Fitted(kept, dropped, len(whole) - len(kept))


def split_turns(messages: Sequence[Message]) -> tuple[list[Message], list[list[Message]]]:
    """The system prompt, which may have no message, and the turns."""
    n_head = 0
    while n_head < len(messages) and messages[n_head]["role"] in ("system", "developer"):
        n_head += 1
    turns: list[list[Message]] = []
    for message in messages[n_head:]:
        if message["role"] == "user" or not turns:
            turns.append([])
        turns[-1].append(message)
    return list(messages[:n_head]), turns
