"""Random numbers that depend on a seed and a step alone, and draws by them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from llama3jit.engine.params import SamplingParams

TOKEN, EXCLUSION = 0, 1  # streams of one seed: what a number is for

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15


def uniform(seed: int, step: int, stream: int = TOKEN) -> float:
    """The step-th number in [0, 1) of a seed's stream: splitmix64 as a function of a counter.

    Constants from Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
    """
    state = _mix((seed + _GOLDEN) & _MASK)
    if stream:
        state = _mix((state + stream) & _MASK)
    return (_mix((state + (step + 1) * _GOLDEN) & _MASK) >> 11) * 2.0**-53


def _mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def draw(values: NDArray[np.float64], high: float, params: SamplingParams, number: float) -> int:
    """An index into logits, by their softmax at the temperature and a number in [0, 1); high: the
    largest of them, which is finite."""
    temperature = float(params.temperature)
    if params.dynatemp_range > 0 and temperature > 0:
        temperature = dynamic_temperature(values, high, params)
    if temperature == 0:
        return int(values.argmax())
    with np.errstate(over="ignore"):  # huge logits and tiny temperatures send the rest to -inf
        return pick(np.exp((values - high) / temperature), number)


def pick(weights: NDArray[np.float64], number: float) -> int:
    """An index, as likely as its weight is large; one of weight 0 never."""
    cumulated = np.cumsum(weights)
    chosen = int(np.searchsorted(cumulated, number * cumulated[-1], side="right"))
    if chosen == len(cumulated):  # the product was rounded up to the whole sum
        chosen = int(np.searchsorted(cumulated, cumulated[-1]))
    return chosen


def dynamic_temperature(values: NDArray[np.float64], high: float, params: SamplingParams) -> float:
    """low + (high - low) * h ** exponent, where low and high are temperature -/+ dynatemp_range
    (not below 0) and h is the entropy of softmax(values) over the largest it could be (llama.cpp's
    "temp-ext"). Logits of -inf do not count; one alone takes the temperature itself."""
    values = values[values > -math.inf]
    if len(values) < 2:
        return float(params.temperature)
    shifted = values - high
    weights = np.exp(shifted)
    total = float(weights.sum())
    # -sum p log p, with log p = shifted - log(total); 0 * -inf does not occur
    entropy = math.log(total) - float((weights * shifted).sum()) / total
    share = min(max(entropy / math.log(len(values)), 0.0), 1.0)
    least = max(0.0, params.temperature - params.dynatemp_range)
    most = params.temperature + params.dynatemp_range
    return float(least + (most - least) * share**params.dynatemp_exponent)
