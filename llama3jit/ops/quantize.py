"""Activations to int8, one scale for each 32 values, for `matmul_int8`."""

from __future__ import annotations

import numpy as np

from llama3jit.ops.bits import rint
from llama3jit.ops.op import AS_WRITTEN, op

SMALLEST = np.float32(2.0**-126)  # of the scales that have an inverse
INFINITY = np.float32(np.inf)


@op(fastmath=AS_WRITTEN, outputs=4)
def quantize(
    xq: i8[T, width],
    xs: f32[T, blocks],
    xsum: i32[T, halves],
    xtotal: f32[T, blocks],
    x: f32[T, K],
    items: T * blocks,
):
    """Over each block of 32 values: xs = max |x| / 127, xq = round(x / xs), xsum = sum of xq in
    each half of the block, xtotal = xs * sum of xq.

    Halves round to even. A block of zeros has the scale 0, one with a NaN the scale NaN. Where the
    scale has no inverse, xq is 0. K is a multiple of 32, and xq may be wider.
    """
    blocks = xs.shape[1]
    for i in items:
        t = i // blocks
        b = i % blocks
        largest = np.float32(0.0)
        for k in range(32 * b, 32 * b + 32):
            magnitude = abs(x[t, k])
            if magnitude > largest or magnitude != magnitude:
                largest = magnitude
        scale = largest / np.float32(127.0)
        inverse = np.float32(0.0)
        if scale >= SMALLEST and scale < INFINITY:
            inverse = np.float32(1.0) / scale
        xsum[t, 2 * b] = 0
        xsum[t, 2 * b + 1] = 0
        for k in range(32 * b, 32 * b + 32):
            q = np.int32(0)
            if inverse > np.float32(0.0):
                q = np.int32(rint(x[t, k] * inverse))
            xq[t, k] = q
            xsum[t, k // 16] += q
        xs[t, b] = scale
        xtotal[t, b] = scale * np.float32(xsum[t, 2 * b] + xsum[t, 2 * b + 1])


@quantize.reference
def quantize_reference(xq, xs, xsum, xtotal, x):
    blocks = np.asarray(x, np.float32).reshape(len(x), -1, 32)
    xs[:] = np.abs(blocks).max(axis=2) / np.float32(127.0)
    inverse = np.zeros_like(xs)
    np.divide(np.float32(1.0), xs, out=inverse, where=(xs >= SMALLEST) & (xs < INFINITY))
    inverse = inverse[:, :, None]
    quantised = np.rint(np.where(inverse > 0, blocks, 0) * inverse).astype(np.int32)
    xq[:, : x.shape[1]] = quantised.reshape(x.shape)
    xsum[:] = quantised.reshape(*xsum.shape, 16).sum(axis=2)
    xtotal[:] = xs * quantised.sum(axis=2)
