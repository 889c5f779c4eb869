"""What the methods of `Llama` take, checked: sampling arguments, prompts as ids."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from llama3jit.checks import did_you_mean
from llama3jit.errors import InvalidArgumentError

if TYPE_CHECKING:
    from llama3jit.engine.params import SamplingParams

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
    stop: strings that end the text and are left out of it.  logprobs: report each token's;
    top_logprobs: and so many of the likeliest.  Those from min_tokens to logit_bias: see
    SamplingParams and docs/sampling.md; all are off unless given.
    response_format: a dict that says what the text has to be: see make_constraint.
    logits_processors: functions f(ids, logits) that change the logits [vocab_size] f32 of the next
    token in place, or give others.  sampler: f(logits, state) that gives the token's id, in place
    of the filters and the draw.  stopping_criteria: functions f(ids, logits) that are true when the
    last of ids is to be the last.  What these raise ends this call alone.
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
    top_logprobs: int
    min_tokens: int
    typical_p: float
    top_n_sigma: float
    xtc_probability: float
    xtc_threshold: float
    dynatemp_range: float
    dynatemp_exponent: float
    repeat_penalty: float
    repeat_last_n: int
    presence_penalty: float
    frequency_penalty: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: Sequence[str]
    mirostat_mode: int
    mirostat_tau: float
    mirostat_eta: float
    logit_bias: Mapping[int, float] | None
    response_format: Mapping[str, Any] | None
    logits_processors: Callable[..., Any] | Sequence[Callable[..., Any]] | None
    sampler: Callable[..., int] | None
    stopping_criteria: Callable[..., bool] | Sequence[Callable[..., bool]] | None
    on_overflow: OnOverflow | None


# Those that are no fields of SamplingParams.
OTHERS = ("response_format", "logits_processors", "sampler", "stopping_criteria", "on_overflow")


def split_sampling(sampling: Sampling) -> tuple[SamplingParams, tuple[str, ...]]:
    """The engine's parameters and the stop strings. Raises InvalidArgumentError for an argument
    that does not exist, by name, or a value that cannot be."""
    from llama3jit.engine.params import SamplingParams

    known = Sampling.__annotations__
    for name in sampling:
        if name not in known:
            hint = did_you_mean(name, known)
            raise InvalidArgumentError(
                f"unknown argument {name!r}{hint} (there are: {', '.join(known)})"
            )
    given: dict[str, Any] = dict(sampling)
    for name in OTHERS:
        given.pop(name, None)
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
