"""Matrix product with a weight in any block format, by float32 or by int8 activations."""

from __future__ import annotations

import numpy as np

from llama3jit.ops.dequantise import FORMATS, rows
from llama3jit.ops.op import op


@op(variants=FORMATS)
def matmul(
    out: f32[T, N], weight: u8[rows, row_bytes], x: f32[T, K], dequantise: function, items: N
):
    """out[t, n] = sum over k of weight[n, k] * x[t, k]"""
    for n in items:
        for t in range(x.shape[0]):
            total = np.float32(0.0)
            for k in range(x.shape[1]):
                total += dequantise(weight, n, k) * x[t, k]
            out[t, n] = total


@matmul.reference
def matmul_reference(out, weight, x, variant):
    out[:] = np.asarray(x, np.float64) @ rows(weight, variant).astype(np.float64).T


@op(variants=FORMATS)
def matmul_int8(
    out: f32[T, N],
    weight: u8[rows, row_bytes],
    xq: i8[T, width],
    xs: f32[T, blocks],
    xsum: i32[T, halves],
    xtotal: f32[T, blocks],
    dequantise: function,
    items: N,
):
    """out[t, n] = sum over k < 32 blocks of weight[n, k] * xq[t, k] * xs[t, k // 32]; see
    `quantize`."""
    for n in items:
        for t in range(xq.shape[0]):
            total = np.float32(0.0)
            for k in range(32 * xs.shape[1]):
                total += dequantise(weight, n, k) * (np.float32(xq[t, k]) * xs[t, k // 32])
            out[t, n] = total


@matmul_int8.reference
def matmul_int8_reference(out, weight, xq, xs, xsum, xtotal, variant):
    x = xq[:, : 32 * xs.shape[1]].astype(np.float64) * np.repeat(xs, 32, axis=1)
    out[:] = x @ rows(weight, variant).astype(np.float64).T
