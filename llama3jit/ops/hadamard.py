"""Heads turned by a Hadamard matrix, so that no component is far larger than the others and a
quantised cache loses less (QuaRot, Ashkboos et al. 2024, arXiv:2404.00456). Keys and queries turned
alike have the same products; the matrix is its own inverse, so a second turn takes values back."""

from __future__ import annotations

import math

import numpy as np

from llama3jit.ops.op import AS_WRITTEN, op


def turned_at_once(head_dim):
    """How many components are mixed: the largest power of two that divides head_dim."""
    return head_dim & -head_dim


@op(fastmath=AS_WRITTEN)
def hadamard(x: f32[T, heads, head_dim], items: T * heads):
    """x = H x / sqrt(n) for each n components, n the largest power of two that divides head_dim:
    H[i, j] is 1, or -1 where i and j share an odd number of bits."""
    heads = x.shape[1]
    n = turned_at_once(x.shape[2])
    share = np.float32(1.0) / np.float32(math.sqrt(np.float32(n)))
    for item in items:
        t = item // heads
        h = item % heads
        distance = 1
        while distance < n:
            for d in range(x.shape[2]):
                if d & distance == 0:
                    a = x[t, h, d]
                    b = x[t, h, d + distance]
                    x[t, h, d] = a + b
                    x[t, h, d + distance] = a - b
            distance *= 2
        for d in range(x.shape[2]):
            x[t, h, d] *= share


@hadamard.reference
def hadamard_reference(x):
    n = turned_at_once(x.shape[2])
    matrix = np.ones((1, 1))
    while len(matrix) < n:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    x[:] = (x.reshape(-1, n).astype(np.float64) @ matrix / math.sqrt(n)).reshape(x.shape)
