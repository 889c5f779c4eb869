"""Activations to int8, 32 values in two registers."""

from __future__ import annotations

import numpy as np

from kernels_cpu.simd import load_f32, mul, splat_f32
from kernels_cpu.simd_int import (
    largest_of_i32,
    magnitude_bits,
    maximum_i32,
    round_to_i32,
    store_i8,
    sum_of_i32,
)
from llama3jit.ops.bits import bits_to_float
from llama3jit.ops.op import AS_WRITTEN, op
from llama3jit.ops.quantize import INFINITY, SMALLEST


@op(fastmath=AS_WRITTEN, outputs=4)
def quantize(
    xq: i8[T, width],
    xs: f32[T, blocks],
    xsum: i32[T, halves],
    xtotal: f32[T, blocks],
    x: f32[T, K],
    items: T * ((blocks + 15) // 16),
):
    """As llama3jit.ops.quantize.quantize; an item is 16 blocks of one token."""
    blocks = xs.shape[1]
    parts = (blocks + 15) // 16
    for item in items:
        t = item // parts
        for b in range(item % parts * 16, min(item % parts * 16 + 16, blocks)):
            at = t * x.shape[1] + 32 * b
            first = load_f32(x, at)
            second = load_f32(x, at + 16)
            # Found among bits, so that a NaN is the largest and makes the scale NaN.
            bits = maximum_i32(magnitude_bits(first), magnitude_bits(second))
            scale = bits_to_float(largest_of_i32(bits)) / np.float32(127.0)
            inverse = np.float32(0.0)
            if scale >= SMALLEST and scale < INFINITY:
                inverse = np.float32(1.0) / scale
            first = round_to_i32(mul(first, splat_f32(inverse)))
            second = round_to_i32(mul(second, splat_f32(inverse)))
            store_i8(xq, t * xq.shape[1] + 32 * b, first)
            store_i8(xq, t * xq.shape[1] + 32 * b + 16, second)
            first_sum = sum_of_i32(first)
            second_sum = sum_of_i32(second)
            xs[t, b] = scale
            xsum[t, 2 * b] = first_sum
            xsum[t, 2 * b + 1] = second_sum
            xtotal[t, b] = scale * np.float32(first_sum + second_sum)
