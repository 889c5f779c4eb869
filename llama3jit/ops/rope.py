"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864) on interleaved pairs, as GGUF files
of the llama architecture store their query and key rows."""

from __future__ import annotations

import math

import numpy as np

from llama3jit.ops.op import AS_WRITTEN, op


@op(fastmath=AS_WRITTEN)
def rope_angles(
    turns: f32[T, half, 2],
    positions: i32[T],
    inverse_frequencies: f64[half],
    magnitude: f32,
    items: T,
):
    """turns[t, i] = (cos, sin)(positions[t] * inverse_frequencies[i]) * magnitude

    The angle is a float64: a float32 one is off by 0.01 at position 100,000.
    """
    for t in items:
        for i in range(turns.shape[1]):
            angle = positions[t] * inverse_frequencies[i]
            turns[t, i, 0] = np.float32(math.cos(angle)) * magnitude
            turns[t, i, 1] = np.float32(math.sin(angle)) * magnitude


@rope_angles.reference
def rope_angles_reference(turns, positions, inverse_frequencies, magnitude):
    angles = positions[:, None] * inverse_frequencies[None, :]
    turns[:] = np.stack([np.cos(angles), np.sin(angles)], axis=2) * magnitude


@op
def rope(x: f32[T, heads, head_dim], turns: f32[T, half, 2], items: T * heads):
    """Turn the pair (x[2i], x[2i + 1]) of every head by turns[t, i], in place; what lies past
    2 * half stays."""
    heads = x.shape[1]
    for item in items:
        t = item // heads
        h = item % heads
        for i in range(turns.shape[1]):
            even = x[t, h, 2 * i]
            odd = x[t, h, 2 * i + 1]
            x[t, h, 2 * i] = even * turns[t, i, 0] - odd * turns[t, i, 1]
            x[t, h, 2 * i + 1] = even * turns[t, i, 1] + odd * turns[t, i, 0]


@rope.reference
def rope_reference(x, turns):
    n = 2 * turns.shape[1]
    even, odd = x[:, :, 0:n:2].copy(), x[:, :, 1:n:2].copy()
    cos, sin = turns[:, None, :, 0], turns[:, None, :, 1]
    x[:, :, 0:n:2] = even * cos - odd * sin
    x[:, :, 1:n:2] = even * sin + odd * cos
