"""Root-mean-square normalisation (Zhang and Sennrich 2019, arXiv:1910.07467)."""

from __future__ import annotations

import math

import numpy as np

from llama3jit.ops.op import op


@op
def rmsnorm(out: f32[rows, n], x: f32[rows, n], weight: f32[n], eps: f32, items: rows):
    """out[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight"""
    n = x.shape[1]
    for r in items:
        total = np.float32(0.0)
        for i in range(n):
            total += x[r, i] * x[r, i]
        scale = np.float32(1.0) / np.float32(math.sqrt(total / np.float32(n) + eps))
        for i in range(n):
            out[r, i] = x[r, i] * scale * weight[i]


@rmsnorm.reference
def rmsnorm_reference(out, x, weight, eps):
    x = np.asarray(x, np.float64)
    out[:] = x / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + eps) * weight
