"""From rows of logits to the tokens of one sequence: what changes logits, and who chooses."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from llama3jit.engine.draws import uniform
from llama3jit.engine.filters import Logits
from llama3jit.engine.penalties import dry, penalize
from llama3jit.engine.sampler import (
    TopLogprobs,
    checked_high,
    is_led,
    logprob,
    mirostat,
    sample_leading,
    sample_row,
    top_logprobs,
)
from llama3jit.errors import InvalidArgumentError, NumericsError

if TYPE_CHECKING:
    from llama3jit.engine.constraint import Constraint
    from llama3jit.engine.sequence import Request


class Choice(NamedTuple):
    """A token; `logprob` and `top_logprobs` if asked for; `ends`: it is the sequence's last."""

    token: int
    logprob: float | None = None
    top_logprobs: TopLogprobs | None = None
    ends: bool = False


@dataclass(frozen=True, slots=True)
class SamplerState:
    """What a sampler of the user's own may know: the tokens so far, the prompt's among them, and
    how many of them were generated."""

    ids: NDArray[np.int32]
    step: int
    seed: int

    @property
    def rng(self) -> np.random.Generator:
        """Random numbers of this seed and step, the same at each call."""
        return np.random.default_rng([self.seed, self.step])


Processor = Callable[[NDArray[np.int32], Logits], Logits | None]
Sampler = Callable[[Logits, SamplerState], int]
Stopping = Callable[[NDArray[np.int32], Logits], bool]


class Chooser:
    """Chooses the tokens of one sequence. All that this depends on besides the logits and tokens is
    here: `fork` copies it, and giving the cache back changes nothing."""

    def __init__(self, request: Request, seed: int) -> None:
        self._request = request
        self._params = params = request.params
        self._seed = seed
        self._mu = 2.0 * params.mirostat_tau  # of mirostat, in bits
        constraint = request.constraint
        self._constraint: Constraint | None = None if constraint is None else constraint.copy()
        bias = params.logit_bias or {}
        self._bias_ids = np.array(list(bias), np.intp)
        with np.errstate(over="ignore"):
            self._biases = np.array(list(bias.values()), np.float32)
        self._end_ids = np.array(sorted(request.end_ids), np.intp)
        self._edits = bool(
            constraint is not None
            or request.processors
            or bias
            or params.min_tokens
            or params.penalizes
            or params.is_dry
        )
        self._needs_row = bool(
            self._edits
            or request.sampler is not None
            or request.stopping
            or params.logprobs
            or (params.temperature > 0 and (params.mirostat_mode or params.top_n_sigma > 0))
        )

    def fork(self, request: Request, seed: int) -> Chooser:
        """One for a sequence that goes on from here by another request."""
        forked = Chooser(request, seed)
        forked._mu = self._mu
        if request.constraint is not None and self._constraint is not None:
            forked._constraint = self._constraint.copy()
        return forked

    def is_led(self, n_leading: int) -> bool:
        """Whether the n_leading largest logits of a row are enough to choose a token."""
        return not self._needs_row and is_led(self._params, n_leading)

    def choose_led(self, ids: NDArray[np.int32], logits: Logits, step: int) -> Choice:
        """What `choose` chooses, from the largest logits of a row alone; see sample_leading."""
        return Choice(sample_leading(ids, logits, self._params, self._seed, step))

    def choose(self, logits: Logits, tokens: Sequence[int], step: int) -> Choice:
        """The token that goes after `tokens`, of which the last `step` were chosen.

        logits: [vocab_size] f32, not changed. Raises NumericsError, which names the step, when one
        is NaN or infinite, InvalidArgumentError when no token is left, and what callables raise.
        """
        request, params = self._request, self._params
        row, high = logits, checked_high(logits, step)
        if self._edits:
            row, high = self._edited(logits, tokens, step)
        if request.sampler is not None:
            token = self._sampled(request.sampler, row, tokens, step)
        elif params.mirostat_mode == 2 and params.temperature > 0:
            number = uniform(self._seed, step)
            token, self._mu = mirostat(row, high, params, self._mu, number)
        else:
            token = sample_row(row, high, params, self._seed, step)
        if token in request.end_ids:
            return Choice(token)
        if self._constraint is not None:
            self._constraint.accept(token)
        return Choice(
            token,
            logprob(logits, token) if params.logprobs else None,
            top_logprobs(logits, params.top_logprobs) if params.top_logprobs else None,
            self._ends(logits, tokens, token),
        )

    def _edited(self, logits: Logits, tokens: Sequence[int], step: int) -> tuple[Logits, float]:
        """The row after the stages that change logits, and the largest of it."""
        request, params = self._request, self._params
        row = logits.copy()
        if len(self._bias_ids):
            with np.errstate(over="ignore"):
                row[self._bias_ids] += self._biases
        if step < params.min_tokens:
            row[self._end_ids] = -math.inf
        for processor in request.processors:
            row = _processed(processor, row, tokens)
        if params.penalizes:
            penalize(row, tokens, params)
        if params.is_dry:
            dry(row, tokens, params, request.dry_breakers)
        if self._constraint is not None:
            self._constraint.allow(row)
        high = float(np.maximum.reduce(row))
        if math.isfinite(high):
            return row, high
        if high == -math.inf:
            raise InvalidArgumentError(
                f"step {step}: no token is left by logit_bias, min_tokens, the logits processors "
                f"and the response format together"
            )
        raise NumericsError(
            f"step {step}: logits are NaN or infinite after logit_bias, logits processors and "
            f"penalties; they were finite before"
        )

    def _sampled(self, sampler: Sampler, row: Logits, tokens: Sequence[int], step: int) -> int:
        state = SamplerState(np.array(tokens, np.int32), step, self._seed)
        given: Any = _called(sampler, row if self._edits else row.copy(), state)
        whole = isinstance(given, int | np.integer) and not isinstance(given, bool)
        if not whole or not 0 <= given < len(row):
            raise InvalidArgumentError(
                f"the sampler gave {given!r:.60}: expected a token id from 0 to {len(row) - 1}"
            )
        if row[given] == -math.inf:
            raise InvalidArgumentError(f"the sampler gave token {given}, whose logit is -inf")
        return int(given)

    def _ends(self, logits: Logits, tokens: Sequence[int], token: int) -> bool:
        if self._constraint is not None and self._constraint.finished:
            return True
        if not self._request.stopping:
            return False
        ids = np.array([*tokens, token], np.int32)
        return any(_called(criterion, ids, logits.copy()) for criterion in self._request.stopping)


def _processed(processor: Processor, row: Logits, tokens: Sequence[int]) -> Logits:
    given: Any = _called(processor, np.array(tokens, np.int32), row)
    if given is None or given is row:
        return row
    changed = np.array(given, np.float32)
    if changed.shape != row.shape:
        raise InvalidArgumentError(
            f"a logits processor gave an array of shape {changed.shape}: expected {row.shape}, or "
            f"None when it changed the logits in place"
        )
    return changed


def _called(function: Callable[..., Any], *given: Any) -> Any:
    """What a user's function gives; nothing that it raises may end the engine's thread."""
    try:
        return function(*given)
    except Exception:
        raise
    except BaseException as error:
        raise InvalidArgumentError(f"{function!r:.60} raised {error!r}") from error
