"""SwiGLU (Shazeer 2020, arXiv:2002.05202)."""

from __future__ import annotations

import numpy as np

from llama3jit.ops.exp import exp
from llama3jit.ops.op import CONTRACT, op

PART = 256  # columns of one item, so that one token's row still has work for every thread


@op(fastmath=CONTRACT)
def swiglu(
    out: f32[rows, n], gate: f32[rows, n], up: f32[rows, n], items: rows * ((n + 255) // 256)
):
    """out = gate / (1 + exp(-gate)) * up"""
    n = gate.shape[1]
    parts = (n + PART - 1) // PART
    for item in items:
        r = item // parts
        first = item % parts * PART
        for i in range(first, min(first + PART, n)):
            g = gate[r, i]
            out[r, i] = g / (np.float32(1.0) + exp(-g)) * up[r, i]


@swiglu.reference
def swiglu_reference(out, gate, up):
    gate = np.asarray(gate, np.float64)
    with np.errstate(over="ignore"):
        out[:] = gate / (1 + np.exp(-gate)) * up
