"""Frequencies of the rotary embedding, with what long contexts do to them."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from llama3jit.model.config import RopeConfig

Float64 = NDArray[np.float64]


def inverse_frequencies(
    rope: RopeConfig, factors: NDArray[np.float32] | None
) -> tuple[Float64, float]:
    """Radians a token for each pair, [dim / 2] float64, and the factor on cos and sin.

    `factors` is the file's rope_freqs.weight, [dim / 2], by which frequencies are divided; it is
    how llama3 scaling is stored, so with it the llama3 formula is not applied again.
    """
    plain = rope.base ** (-np.arange(0, rope.dim, 2, dtype=np.float64) / rope.dim)
    if factors is not None:
        plain = plain / factors.astype(np.float64)
    if rope.scaling == "linear":
        return plain / rope.factor, rope.attention_factor
    if rope.scaling == "yarn":
        return _yarn(rope, plain)
    if rope.scaling == "llama3" and factors is None:
        return _llama3(rope, plain), rope.attention_factor
    return plain, rope.attention_factor


def _yarn(rope: RopeConfig, plain: Float64) -> tuple[Float64, float]:
    """YaRN (Peng et al. 2023, arXiv:2309.00071): slow pairs are interpolated, fast ones kept, with
    a ramp between; attention is sharpened by a larger magnitude."""

    def pair_of(rotations: float) -> float:
        """The pair that turns so often over the original context."""
        span = rope.original_context / (rotations * 2 * math.pi)
        return rope.dim * math.log(span) / (2 * math.log(rope.base))

    low = max(0.0, math.floor(pair_of(rope.beta_fast)))
    high = min(rope.dim - 1.0, math.ceil(pair_of(rope.beta_slow)))
    pairs = np.arange(rope.dim // 2, dtype=np.float64)
    kept = 1 - np.clip((pairs - low) / max(0.001, high - low), 0, 1)
    kept *= rope.extrapolation
    magnitude = rope.attention_factor
    if rope.extrapolation != 0:
        magnitude *= 1 + 0.1 * math.log(rope.factor)
    return plain / rope.factor * (1 - kept) + plain * kept, magnitude


def _llama3(rope: RopeConfig, plain: Float64) -> Float64:
    """Llama 3.1's rule: wavelengths past the original context are stretched, short ones kept."""
    wavelengths = 2 * math.pi / plain
    low, high = rope.low_frequency_factor, rope.high_frequency_factor
    kept = (rope.original_context / wavelengths - low) / max(high - low, 1e-9)
    kept = np.clip(kept, 0, 1)
    return plain / rope.factor * (1 - kept) + plain * kept
