"""What the methods of `Llama` take, checked: sampling arguments, prompts as ids."""

from __future__ import annotations

import difflib
import operator
from collections.abc import Callable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from llama3jit.errors import InvalidArgumentError

if TYPE_CHECKING:
    from llama3jit.engine.sequence import SamplingParams

# Called while kernels compile: how many are done, how many there are, the name of the last.
Progress = Callable[[int, int, str], None]
Prompt = str | Sequence[int]
Message = Mapping[str, Any]  # {"role": "user", "content": "..."}, as templates take them
Messages = Sequence[Message]
OnOverflow = Literal["error", "shift"]


class Sampling(TypedDict, total=False):
    """The keyword arguments of generate, stream, chat, their twins and sessions; defaults are
    llama.cpp's.

    max_tokens: None goes on until the context is full.  temperature: 0.8; 0 is greedy.
    top_k: 40; 0 is off.  top_p: 0.95; 1 is off.  min_p: 0.05; 0 is off.  seed: None draws one.
    stop: strings that end the text and are left out of it.  logprobs: report each token's.
    on_overflow: what becomes of a prompt that leaves no room: "error", or "shift": the oldest turns
    (of a text, the oldest tokens) are left out; None does as `load` was told.
    """

    max_tokens: int | None
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int | None
    stop: str | Sequence[str]
    logprobs: bool
    on_overflow: OnOverflow | None


def split_sampling(sampling: Sampling) -> tuple[SamplingParams, tuple[str, ...]]:
    """The engine's parameters and the stop strings. Raises InvalidArgumentError for an argument
    that does not exist, by name, or a value that cannot be."""
    from llama3jit.engine.sequence import SamplingParams

    known = Sampling.__annotations__
    for name in sampling:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise InvalidArgumentError(
                f"unknown argument {name!r}{hint} (there are: {', '.join(known)})"
            )
    given: dict[str, Any] = dict(sampling)
    given.pop("on_overflow", None)
    stop = given.pop("stop", None)
    stops = () if stop is None else (stop,) if isinstance(stop, str) else _items(stop, "stop")
    for one in stops:
        if not isinstance(one, str) or not one:
            raise InvalidArgumentError(f"stop has {one!r}: expected strings that are not empty")
    return SamplingParams(**given), stops


def _items(values: Any, name: str) -> tuple[Any, ...]:
    try:
        return tuple(values)
    except TypeError:
        raise InvalidArgumentError(
            f"{name} is {values!r:.60}: expected a string, or a sequence of strings"
        ) from None


def as_ids(ids: Sequence[int]) -> list[int]:
    """Token ids as Python ints, from any sequence of whole numbers."""
    # Bytes are text in disguise, and sets have no order.
    if isinstance(ids, bytes | bytearray | memoryview | Mapping | Set):
        raise InvalidArgumentError(
            f"token ids: {type(ids).__name__} is no sequence of ids; expected text or whole numbers"
        )
    try:
        return [operator.index(token) for token in ids]
    except TypeError as error:
        raise InvalidArgumentError(f"token ids: {error}; expected text or whole numbers") from error
