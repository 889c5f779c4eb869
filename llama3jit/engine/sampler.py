"""From one row of logits to a token id, by the filters, the temperature and a draw.

The order is that of llama.cpp's default chain (llama-sampler.cpp): top_n_sigma, top_k, typical_p,
top_p, min_p, xtc, temperature. What comes before, and belongs to a sequence, is the Chooser's.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from llama3jit.engine.draws import EXCLUSION, draw, pick, uniform
from llama3jit.engine.filters import Logits, exclude_top, largest, narrow, survivors
from llama3jit.errors import NumericsError

if TYPE_CHECKING:
    from llama3jit.engine.params import SamplingParams

TopLogprobs = list[tuple[int, float]]


def sample(logits: Logits, params: SamplingParams, seed: int, step: int) -> int:
    """The token chosen from logits [vocab_size] f32 at the step-th token of a sequence, by the
    filters, the temperature and a draw alone.

    The same logits, parameters, seed and step always give the same token. Raises NumericsError,
    which names the step, when any logit is NaN or infinite.
    """
    return sample_row(logits, checked_high(logits, step), params, seed, step)


def sample_row(logits: Logits, high: float, params: SamplingParams, seed: int, step: int) -> int:
    """The same of logits of which some may be -inf; high: the largest of them, which is finite."""
    if params.temperature == 0:
        return int(logits.argmax())
    with np.errstate(over="ignore"):
        kept = survivors(logits, params, high)
    if kept is None:
        return _draw(logits.astype(np.float64), high, params, seed, step)
    values = logits[kept].astype(np.float64)
    return int(kept[_draw(values, float(values[0]), params, seed, step)])


def is_led(params: SamplingParams, n_leading: int) -> bool:
    """Whether the n_leading largest logits of a row are enough for the filters and the draw."""
    return params.temperature == 0 or 0 < params.top_k <= n_leading


def sample_leading(
    ids: NDArray[np.int32], logits: Logits, params: SamplingParams, seed: int, step: int
) -> int:
    """What `sample` chooses, from the largest logits of a row alone: finite, by falling logit, then
    rising id."""
    if params.temperature == 0:
        return int(ids[0])
    values = logits[: params.top_k].astype(np.float64)
    kept = narrow(values, params)
    values = values[kept]
    chosen = _draw(values, float(values[0]), params, seed, step)
    return int(ids[chosen if isinstance(kept, slice) else kept[chosen]])


def mirostat(
    logits: Logits, high: float, params: SamplingParams, mu: float, number: float
) -> tuple[int, float]:
    """Mirostat 2.0 (Basu et al. 2021): a token drawn from those whose surprise, -log2 p at the
    temperature, is at most mu bits; and the next mu, moved by the learning rate eta, so that the
    surprise is tau bits on average."""
    with np.errstate(over="ignore"):
        scaled = (logits.astype(np.float64) - high) / params.temperature
    weights = np.exp(scaled)
    ids = np.flatnonzero(scaled >= math.log(float(weights.sum())) - mu * math.log(2.0))
    if len(ids) == 0:
        ids = np.array([logits.argmax()])
    kept = weights[ids]
    at = pick(kept, number)
    surprise = -math.log2(float(kept[at]) / float(kept.sum()))
    return int(ids[at]), mu - params.mirostat_eta * (surprise - params.mirostat_tau)


def _draw(
    values: NDArray[np.float64], high: float, params: SamplingParams, seed: int, step: int
) -> int:
    """A place in values, of which `high` is the largest, by xtc, the temperature and a draw."""
    if params.excludes_top and uniform(seed, step, EXCLUSION) < params.xtc_probability:
        left = exclude_top(values, high, params.xtc_threshold)
        if left is not None:
            values = values[left]
            high = float(np.maximum.reduce(values))
            return int(left[draw(values, high, params, uniform(seed, step))])
    return draw(values, high, params, uniform(seed, step))


def logprob(logits: Logits, token: int) -> float:
    """The natural logarithm of softmax(logits)[token]; logits [vocab_size] f32."""
    return float(logits[token]) - _log_total(logits)


def top_logprobs(logits: Logits, count: int) -> TopLogprobs:
    """The `count` likeliest ids with their logprobs; of equal ones the lower id first."""
    total = _log_total(logits)
    return [(int(token), float(logits[token]) - total) for token in largest(logits, count)]


def _log_total(logits: Logits) -> float:
    high = np.maximum.reduce(logits)
    with np.errstate(over="ignore"):
        total = np.exp(logits - high).sum(dtype=np.float64)
    return float(high) + math.log(total)


def checked_high(logits: Logits, step: int) -> float:
    """The largest logit. Raises NumericsError, which names the step, when any is not finite."""
    high = float(np.maximum.reduce(logits))
    if math.isfinite(high) and math.isfinite(np.minimum.reduce(logits)):
        return high
    wrong = np.flatnonzero(~np.isfinite(logits))
    raise NumericsError(
        f"step {step}: {len(wrong)} of {len(logits)} logits are NaN or infinite (first token "
        f"{wrong[0]}: {logits[wrong[0]]}); the weights or a kernel are broken: compare with "
        f"precision='exact' and device='reference'"
    )
