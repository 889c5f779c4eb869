"""Root-mean-square normalisation, 16 values at a time: in one order of summing on every level."""

from __future__ import annotations

import math

import numpy as np

from kernels_cpu.simd import add, fma, load_f32, mul, splat_f32, store_f32, sum_of
from llama3jit.ops.op import AS_WRITTEN, op

LANES = 16


@op(fastmath=AS_WRITTEN)
def rmsnorm(out: f32[rows, n], x: f32[rows, n], weight: f32[n], eps: f32, items: rows):
    """As llama3jit.ops.rmsnorm.rmsnorm."""
    n = x.shape[1]
    whole = n // LANES * LANES
    for r in items:
        at = r * n
        even = odd = splat_f32(np.float32(0.0))
        for i in range(0, whole - LANES, 2 * LANES):
            even = fma(load_f32(x, at + i), load_f32(x, at + i), even)
            odd = fma(load_f32(x, at + i + LANES), load_f32(x, at + i + LANES), odd)
        if whole % (2 * LANES) != 0:
            last = load_f32(x, at + whole - LANES)
            even = fma(last, last, even)
        total = sum_of(add(even, odd))
        for i in range(whole, n):
            total += x[r, i] * x[r, i]
        scale = np.float32(1.0) / np.float32(math.sqrt(total / np.float32(n) + eps))
        scales = splat_f32(scale)
        for i in range(0, whole, LANES):
            store_f32(out, at + i, mul(mul(load_f32(x, at + i), scales), load_f32(weight, i)))
        for i in range(whole, n):
            out[r, i] = x[r, i] * scale * weight[i]
