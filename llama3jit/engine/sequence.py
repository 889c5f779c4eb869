"""What is asked of the engine, and the state of one sequence while it is worked on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from llama3jit.engine.chooser import Chooser, Processor, Sampler, Stopping
from llama3jit.engine.constraint import Constraint
from llama3jit.engine.params import SamplingParams
from llama3jit.engine.penalties import Breakers
from llama3jit.engine.sampler import TopLogprobs

if TYPE_CHECKING:
    from llama3jit.devices.capture import Capture

__all__ = ["Finish", "Request", "SamplingParams", "SequenceState", "TokenEvent"]

FinishReason = Literal["stop", "length", "cancelled", "error"]

# Called on the engine's thread with the position of the first row and rows [n, vocab_size] f32 that
# are valid during the call alone.
Visit = Callable[[int, NDArray[np.float32]], None]


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt to go on from, or, with `visit`, tokens whose logits are wanted and nothing after.

    tokens: at least one id.  end_ids: ids that end the sequence; they are not handed out.
    visit: gets the logits of every position from `visit_from` on, in order, chunk by chunk.
    constraint: what the generated tokens have to follow; it is copied.  processors: change a copy
    of each row of logits.  sampler: chooses from it, in place of the filters and the draw.
    stopping: whether a token, which stands last in the ids, is the last.  dry_breakers: of the dry
    penalty.  What these callables raise ends the sequence.  capture: what else to show of the
    passes, beside a visit from 0 on.
    """

    tokens: Sequence[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    end_ids: frozenset[int] = frozenset()
    visit: Visit | None = None
    visit_from: int = 0
    constraint: Constraint | None = None
    processors: tuple[Processor, ...] = ()
    sampler: Sampler | None = None
    stopping: tuple[Stopping, ...] = ()
    dry_breakers: Breakers = field(default_factory=dict)
    capture: Capture | None = None


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One generated token; `logprob` is the model's own (natural log, before any filter) if asked
    for, and `top_logprobs` those of the likeliest; `time` is time.perf_counter()'s when it was
    chosen."""

    token: int
    logprob: float | None
    time: float
    top_logprobs: TopLogprobs | None = None


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
    prefix_tokens: int = 0  # of the prompt, that were there when it was admitted
    admitted: float = 0.0  # when it first ran
    block_table: list[int] = field(default_factory=list)
    block_row: NDArray[np.int32] = field(default_factory=lambda: np.zeros((1, 0), np.int32))
    digests: list[bytes] = field(default_factory=list)  # of the first full blocks; see PrefixIndex
    forked: tuple[int, ...] = ()  # what was generated before a fork
    cancelled: bool = False  # set by any thread, read by the engine's
    events: SimpleQueue[Any] = field(default_factory=SimpleQueue)  # TokenEvent ..., Finish
    listener: Callable[[], None] | None = None  # called, and soon over, when there is an event
    chooser: Chooser = field(init=False)  # preempted, it goes on where it was

    def __post_init__(self) -> None:
        self.chooser = Chooser(self.request, self.seed)

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
