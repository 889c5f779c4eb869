"""What matrix products on packed weights have in common.

A span is 16 or 32 columns of a weight that share a scale.
"""

from __future__ import annotations

import numpy as np

from kernels_cpu.simd import load_scalar, splat_f32, spread_f32, store_f32, store_first_f32
from kernels_cpu.simd_int import load_i32

LANES = 16


def put(out, at, n, vector):
    """Store 16 rows of one token, or the first n if there are fewer."""
    if n >= LANES:
        store_f32(out, at, vector)
    elif n > 0:
        store_first_f32(out, at, vector, n)


def sum_of_span(xsum, t, k, halves):
    """The sum of xq of token t over the span that begins at column k."""
    at = t * halves + k // 16
    if QUADS == 8:
        return load_i32(xsum, at) + load_i32(xsum, at + 1)
    return load_i32(xsum, at)


def total_of_span(xs, xsum, xtotal, t, k, halves):
    """The sum of what xq stands for over the span that begins at column k, in every lane."""
    block = t * (halves // 2) + k // 32
    if QUADS == 8:
        return spread_f32(xtotal, block)
    return splat_f32(load_scalar(xs, block) * np.float32(load_i32(xsum, t * halves + k // 16)))
