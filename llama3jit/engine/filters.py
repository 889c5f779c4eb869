"""The filters of a row of logits: which tokens may be drawn. Formulas of llama-sampler.cpp.

Most keep the largest logits, so each is a cut in one falling order, and only the few candidates
above a threshold are ever sorted. Logits may be -inf: such a token is forbidden.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from llama3jit.engine.params import SamplingParams

Logits = NDArray[np.float32]
Ids = NDArray[np.intp]
_LEAST = float(np.finfo(np.float32).min)  # less is -inf


def survivors(logits: Logits, params: SamplingParams, high: float) -> Ids | None:
    """Ids that pass top_n_sigma, top_k, typical_p, top_p and min_p, by falling logit, then rising
    id; None when all are off. high: the largest of logits [vocab_size] f32."""
    lowest = _LEAST
    if params.top_n_sigma > 0:
        lowest = max(lowest, _sigma_floor(logits, params.top_n_sigma, high))
    if 0 < params.top_k < len(logits):
        bound = max(lowest, _kth_bound(logits, params.top_k))
        ids = falling(logits, bound)[: params.top_k]
        return ids[narrow(logits[ids].astype(np.float64), params)]
    if params.typical_p < 1:
        ids = np.flatnonzero(logits >= lowest)
        ids = ids[_typical(logits[ids].astype(np.float64), params.typical_p)]
        ids = ids[np.argsort(-logits[ids], kind="stable")]
        return ids[: _filtered(logits[ids].astype(np.float64), params)]
    floor = lowest
    if params.min_p > 0:
        floor = max(lowest, _min_p_floor(params.min_p, high))
    if params.top_p < 1:
        return _top_p_of_all(logits, params.top_p, high, lowest, floor)
    return falling(logits, floor) if floor > _LEAST else None


def narrow(values: NDArray[np.float64], params: SamplingParams) -> Ids | slice:
    """What typical_p, top_p and min_p leave of falling logits that top_k lets pass."""
    if params.typical_p >= 1:
        return slice(_filtered(values, params))
    kept = _typical(values, params.typical_p)
    return kept[: _filtered(values[kept], params)]


def exclude_top(values: NDArray[np.float64], high: float, threshold: float) -> Ids | None:
    """xtc, "exclude top choices": of the logits whose probability is threshold or more, all but the
    least go, the last of those that are equal. Places of what stays, or None when all does."""
    weights = np.exp(values - high)
    above = np.flatnonzero((weights >= threshold * weights.sum()) & (values > -math.inf))
    if len(above) < 2:
        return None
    least = above[len(above) - 1 - int(np.argmin(values[above][::-1]))]
    gone = np.zeros(len(values), bool)
    gone[above] = True
    gone[least] = False
    return np.flatnonzero(~gone)


def falling(logits: Logits, floor: float) -> Ids:
    """Ids of the logits that reach `floor`, by falling logit, then rising id."""
    ids = np.flatnonzero(logits >= floor)
    return ids[np.argsort(-logits[ids], kind="stable")]


def largest(logits: Logits, k: int) -> Ids:
    """Ids of the k largest logits, by falling logit, then rising id."""
    return falling(logits, _kth_bound(logits, k) if k < len(logits) else -math.inf)[:k]


def _sigma_floor(logits: Logits, n: float, high: float) -> float:
    """The largest logit less n standard deviations of those that are not forbidden."""
    finite = logits[logits >= _LEAST]
    return high - n * float(np.std(finite, dtype=np.float64))


def _min_p_floor(min_p: float, high: float) -> float:
    """The least logit that min_p lets pass, rounded once, so that all compare with one number."""
    return float(np.float32(high + math.log(min_p)))


def _filtered(values: NDArray[np.float64], params: SamplingParams) -> int:
    """How many of the falling logits pass top_p and min_p."""
    keep = len(values)
    high = float(values[0])
    if params.top_p < 1:
        weights = np.exp(values - high)
        keep = _top_p_count(weights, params.top_p * weights.sum())
    if params.min_p > 0:
        floor = _min_p_floor(params.min_p, high)
        keep = min(keep, int(np.searchsorted(-values, -floor, side="right")))
    return keep


def _typical(values: NDArray[np.float64], typical_p: float) -> Ids:
    """Locally typical sampling (Meister et al. 2022): by how little -log p differs from the entropy
    of softmax(values), the fewest whose probabilities sum to more than typical_p; of equal ones the
    larger logit goes first, then the lower place. Their places, rising."""
    shifted = values - np.maximum.reduce(values)
    weights = np.exp(shifted)
    total = float(weights.sum())
    # -log p - entropy, both without their log(total)
    scores = np.abs(shifted - float((weights * shifted).sum()) / total)
    target = typical_p * total
    for width in (1.0, 2.0, 4.0, 8.0, math.inf):  # most often those nearest hold enough
        near = np.flatnonzero(scores <= width)
        if float(weights[near].sum()) > target:
            break
    near = near[np.lexsort((-values[near], scores[near]))]
    count = int(np.searchsorted(np.cumsum(weights[near]), target, side="right")) + 1
    return np.sort(near[:count])


def _kth_bound(logits: Logits, k: int) -> float:
    """A number that at least k logits reach: the k-th largest of the maxima of disjoint groups."""
    groups = max(256, 4 * k)
    if 2 * groups > len(logits):
        return float(np.partition(logits, -k)[-k])
    rows = len(logits) // groups
    maxima = np.maximum.reduce(logits[: rows * groups].reshape(rows, groups), axis=0)
    return float(np.partition(maxima, -k)[-k])


def _top_p_count(weights: NDArray[np.float64], target: float) -> int:
    """How many of the falling weights it takes to reach target; all if they never do."""
    return min(int(np.searchsorted(np.cumsum(weights), target)) + 1, len(weights))


def _top_p_of_all(logits: Logits, top_p: float, high: float, lowest: float, floor: float) -> Ids:
    """top_p of the logits that reach `lowest`, as far as they reach `floor`."""
    weighed = logits if lowest == _LEAST else logits[logits >= lowest]
    target = top_p * float(np.exp(weighed - np.float32(high)).sum(dtype=np.float64))
    for depth in (4.0, 8.0, 16.0, math.inf):  # most often the first few hold enough
        edge = max(floor, high - depth)
        ids = falling(logits, edge)
        weights = np.exp(logits[ids].astype(np.float64) - high)
        if edge == floor or weights.sum() >= target:
            break
    return ids[: _top_p_count(weights, target)]
