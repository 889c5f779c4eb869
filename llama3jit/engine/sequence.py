"""What is asked of the engine, and the state of one sequence while it is worked on."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from llama3jit.errors import InvalidArgumentError

FinishReason = Literal["stop", "length", "cancelled", "error"]

# Called on the engine's thread with the position of the first row and rows [n, vocab_size] f32 that
# are valid during the call alone.
Visit = Callable[[int, NDArray[np.float32]], None]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen; checked when made (InvalidArgumentError names the parameter).

    The filters run in llama.cpp's order: top_k, top_p, min_p, temperature. `top_k=0`, `top_p=1` and
    `min_p=0` switch a filter off; `temperature=0` takes the largest logit, the lowest id on ties.
    `seed=None` draws a random seed. `max_tokens=None` goes on until the context is full.
    """

    max_tokens: int | None = None
    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    seed: int | None = None
    logprobs: bool = False

    def __post_init__(self) -> None:
        if self.max_tokens is not None:
            _check_int("max_tokens", self.max_tokens, 1, None, "None goes on to the context's end")
        _check_number("temperature", self.temperature, math.inf, "0 is greedy")
        _check_int("top_k", self.top_k, 0, None, "0 switches it off")
        _check_number("top_p", self.top_p, 1.0, "1 switches it off")
        _check_number("min_p", self.min_p, 1.0, "0 switches it off")
        if self.seed is not None:
            _check_int("seed", self.seed, 0, 2**64 - 1, "None draws a random one")


def _check_int(name: str, value: object, low: int, high: int | None, note: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise InvalidArgumentError(f"{name} is {value!r}: expected a whole number ({note})")
    if value < low or (high is not None and value > high):
        bounds = f"{low} or more" if high is None else f"{low} to {high}"
        raise InvalidArgumentError(f"{name} is {value}: expected {bounds} ({note})")


def _check_number(name: str, value: object, high: float, note: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise InvalidArgumentError(f"{name} is {value!r}: expected a number ({note})")
    if not 0 <= value <= min(high, sys.float_info.max):
        bounds = "a finite number, 0 or more" if high == math.inf else f"0 to {high:g}"
        raise InvalidArgumentError(f"{name} is {value}: expected {bounds} ({note})")


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt to go on from, or, with `visit`, tokens whose logits are wanted and nothing after.

    tokens: at least one id.  end_ids: ids that end the sequence; they are not handed out.
    visit: gets the logits of every position from `visit_from` on, in order, chunk by chunk.
    """

    tokens: Sequence[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    end_ids: frozenset[int] = frozenset()
    visit: Visit | None = None
    visit_from: int = 0


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One generated token; `logprob` is the model's own (natural log, before any filter) if asked
    for; `time` is time.perf_counter()'s when it was chosen."""

    token: int
    logprob: float | None
    time: float


@dataclass(frozen=True, slots=True)
class Finish:
    """The last event of every sequence."""

    reason: FinishReason
    error: Exception | None = None


@dataclass(slots=True, eq=False)
class SequenceState:
    """One sequence: owned by the engine's thread, except `cancelled` and `events`."""

    request: Request
    seed: int
    submitted: float  # time.perf_counter()
    tokens: list[int]  # the prompt and what was generated
    capacity: int  # tokens at which generation ends
    visited: int  # positions before this one have been visited, or need not be
    computed: int = 0  # tokens whose keys and values are in the cache
    admitted: float = 0.0  # when it first ran
    block_table: list[int] = field(default_factory=list)
    block_row: NDArray[np.int32] = field(default_factory=lambda: np.zeros((1, 0), np.int32))
    cancelled: bool = False  # set by any thread, read by the engine's
    events: SimpleQueue[Any] = field(default_factory=SimpleQueue)  # TokenEvent ..., Finish
    listener: Callable[[], None] | None = None  # called, and soon over, when there is an event

    def emit(self, event: TokenEvent | Finish) -> None:
        """Hand an event to whoever waits for it."""
        self.events.put(event)
        if self.listener is not None:
            try:
                self.listener()
            except RuntimeError:  # its event loop was closed: nobody waits any more
                self.cancelled = True

    @property
    def generated(self) -> int:
        """Tokens chosen so far; the step of the random numbers."""
        return len(self.tokens) - len(self.request.tokens)

    @property
    def pending(self) -> int:
        """Tokens that the cache lacks: 1 while decoding."""
        return len(self.tokens) - self.computed
