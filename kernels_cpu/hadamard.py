"""Heads turned by a Hadamard matrix, 16 components in a register."""

from __future__ import annotations

import math

import numpy as np

from kernels_cpu.kv_plain import LANES
from kernels_cpu.simd import add, hadamard_of_16, load_f32, mul, splat_f32, store_f32, sub
from llama3jit.ops.hadamard import turned_at_once
from llama3jit.ops.op import AS_WRITTEN, op


@op(fastmath=AS_WRITTEN)
def hadamard(x: f32[T, heads, head_dim], items: T * heads):
    """As llama3jit.ops.hadamard.hadamard, with the same bits; head_dim is a multiple of 16."""
    head_dim = x.shape[2]
    n = turned_at_once(head_dim)
    share = splat_f32(np.float32(1.0) / np.float32(math.sqrt(np.float32(n))))
    for item in items:
        start = item * head_dim
        for d in range(0, head_dim, LANES):
            store_f32(x, start + d, hadamard_of_16(load_f32(x, start + d)))
        distance = LANES
        while distance < n:
            for first in range(start, start + head_dim, 2 * distance):
                for at in range(first, first + distance, LANES):
                    a = load_f32(x, at)
                    b = load_f32(x, at + distance)
                    store_f32(x, at, add(a, b))
                    store_f32(x, at + distance, sub(a, b))
            distance *= 2
        for d in range(0, head_dim, LANES):
            store_f32(x, start + d, mul(load_f32(x, start + d), share))
