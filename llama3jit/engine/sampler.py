"""From one row of logits to a token id.

The filters and their order are of llama.cpp's default chain (llama-sampler.cpp): top_k, top_p,
min_p, temperature. All of them keep the largest logits, so each is a cut in one falling order, and
only the few candidates above a threshold are ever sorted.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from llama3jit.errors import NumericsError

if TYPE_CHECKING:
    from llama3jit.engine.sequence import SamplingParams

Logits = NDArray[np.float32]
_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15


def sample(logits: Logits, params: SamplingParams, seed: int, step: int) -> int:
    """The token chosen from logits [vocab_size] f32 at the step-th token of a sequence.

    The same logits, parameters, seed and step always give the same token. Raises NumericsError,
    which names the step, when any logit is NaN or infinite.
    """
    high = float(np.maximum.reduce(logits))
    if not math.isfinite(high) or not math.isfinite(np.minimum.reduce(logits)):
        raise NumericsError(_describe_not_finite(logits, step))
    if params.temperature == 0:
        return int(logits.argmax())
    with np.errstate(over="ignore"):
        kept = _survivors(logits, params, high)
    values = logits.astype(np.float64) if kept is None else logits[kept].astype(np.float64)
    chosen = _draw(values, high, params, seed, step)
    return chosen if kept is None else int(kept[chosen])


def is_led(params: SamplingParams, n_leading: int) -> bool:
    """Whether the n_leading largest logits of a row are enough to choose a token."""
    return params.temperature == 0 or 0 < params.top_k <= n_leading


def sample_leading(
    ids: NDArray[np.int32], logits: Logits, params: SamplingParams, seed: int, step: int
) -> int:
    """What `sample` chooses, from the largest logits of a row alone: finite, by falling logit, then
    rising id."""
    if params.temperature == 0:
        return int(ids[0])
    values = logits[: params.top_k].astype(np.float64)
    high = float(values[0])
    kept = values[: _filtered(values, params, high)]
    return int(ids[_draw(kept, high, params, seed, step)])


def _draw(
    values: NDArray[np.float64], high: float, params: SamplingParams, seed: int, step: int
) -> int:
    """An index into logits, by their softmax at the temperature; high: the largest of them."""
    with np.errstate(over="ignore"):  # huge logits and tiny temperatures send the rest to -inf
        cumulated = np.cumsum(np.exp((values - high) / params.temperature))
    chosen = int(np.searchsorted(cumulated, uniform(seed, step) * cumulated[-1], side="right"))
    if chosen == len(cumulated):  # the product was rounded up to the whole sum
        chosen = int(np.searchsorted(cumulated, cumulated[-1]))
    return chosen


def logprob(logits: Logits, token: int) -> float:
    """The natural logarithm of softmax(logits)[token]; logits [vocab_size] f32."""
    high = np.maximum.reduce(logits)
    with np.errstate(over="ignore"):
        total = np.exp(logits - high).sum(dtype=np.float64)
    return float(logits[token]) - float(high) - math.log(total)


def uniform(seed: int, step: int) -> float:
    """The step-th number in [0, 1) of a seed: splitmix64 as a function of a counter.

    Constants from Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
    """
    state = _mix((seed + _GOLDEN) & _MASK)
    return (_mix((state + (step + 1) * _GOLDEN) & _MASK) >> 11) * 2.0**-53


def _mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def _survivors(logits: Logits, params: SamplingParams, high: float) -> NDArray[np.intp] | None:
    """Ids that pass the filters, by falling logit, then rising id; None when all are off."""
    if 0 < params.top_k < len(logits):
        ids = _falling(logits, _kth_bound(logits, params.top_k))[: params.top_k]
        return ids[: _filtered(logits[ids].astype(np.float64), params, high)]
    floor = _floor(params, high)
    if params.top_p < 1:
        return _top_p_of_all(logits, params.top_p, high, floor)
    return _falling(logits, floor) if params.min_p > 0 else None


def _floor(params: SamplingParams, high: float) -> float:
    """The least logit that min_p lets pass, rounded once, so that all compare with one number."""
    return float(np.float32(high + math.log(params.min_p))) if params.min_p > 0 else -math.inf


def _filtered(values: NDArray[np.float64], params: SamplingParams, high: float) -> int:
    """How many of the falling logits that top_k lets pass also pass top_p and min_p."""
    keep = len(values)
    if params.top_p < 1:
        weights = np.exp(values - high)
        keep = _top_p_count(weights, params.top_p * weights.sum())
    if params.min_p > 0:
        keep = min(keep, int(np.searchsorted(-values, -_floor(params, high), side="right")))
    return keep


def _kth_bound(logits: Logits, k: int) -> float:
    """A number that at least k logits reach: the k-th largest of the maxima of disjoint groups."""
    groups = max(256, 4 * k)
    if 2 * groups > len(logits):
        return float(np.partition(logits, -k)[-k])
    rows = len(logits) // groups
    maxima = np.maximum.reduce(logits[: rows * groups].reshape(rows, groups), axis=0)
    return float(np.partition(maxima, -k)[-k])


def _falling(logits: Logits, floor: float) -> NDArray[np.intp]:
    """Ids of the logits that reach `floor`, by falling logit, then rising id."""
    ids = np.flatnonzero(logits >= floor)
    return ids[np.argsort(-logits[ids], kind="stable")]


def _top_p_count(weights: NDArray[np.float64], target: float) -> int:
    """How many of the falling weights it takes to reach target; all if they never do."""
    return min(int(np.searchsorted(np.cumsum(weights), target)) + 1, len(weights))


def _top_p_of_all(logits: Logits, top_p: float, high: float, floor: float) -> NDArray[np.intp]:
    target = top_p * float(np.exp(logits - np.float32(high)).sum(dtype=np.float64))
    for depth in (4.0, 8.0, 16.0, math.inf):  # most often the first few hold enough
        edge = max(floor, high - depth)
        ids = _falling(logits, edge)
        weights = np.exp(logits[ids].astype(np.float64) - high)
        if edge == floor or weights.sum() >= target:
            break
    return ids[: _top_p_count(weights, target)]


def _describe_not_finite(logits: Logits, step: int) -> str:
    wrong = np.flatnonzero(~np.isfinite(logits))
    return (
        f"step {step}: {len(wrong)} of {len(logits)} logits are NaN or infinite (first token "
        f"{wrong[0]}: {logits[wrong[0]]}); the weights or a kernel are broken: compare with "
        f"precision='exact' and device='reference'"
    )
