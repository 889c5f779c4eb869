"""SwiGLU, 16 values at a time."""

from __future__ import annotations

import math

import numpy as np

from kernels_cpu.exp import exp
from kernels_cpu.simd import add, div, load_f32, mul, splat_f32, store_f32, sub
from llama3jit.ops.op import AS_WRITTEN, op

LANES = 16
PART = 256


@op(fastmath=AS_WRITTEN)
def swiglu(
    out: f32[rows, n], gate: f32[rows, n], up: f32[rows, n], items: rows * ((n + 255) // 256)
):
    """As llama3jit.ops.swiglu.swiglu."""
    n = gate.shape[1]
    parts = (n + PART - 1) // PART
    one = splat_f32(np.float32(1.0))
    zero = splat_f32(np.float32(0.0))
    for item in items:
        first = item % parts * PART
        end = min(first + PART, n)
        at = item // parts * n + first
        for _ in range((end - first) // LANES):
            g = load_f32(gate, at)
            activated = div(g, add(one, exp(sub(zero, g))))
            store_f32(out, at, mul(activated, load_f32(up, at)))
            at += LANES
        r = item // parts
        for i in range(end - (end - first) % LANES, end):
            g = gate[r, i]
            out[r, i] = g / (np.float32(1.0) + np.float32(math.exp(-g))) * up[r, i]
