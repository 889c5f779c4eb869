"""Matrix products on packed weights (llama3jit.ops.pack): a tile of outputs stays in registers
while k runs, two groups of 16 rows by a few tokens.

Every output is one chain of fma over k in ascending order, whatever the tile it is in, so its bits
do not depend on how many tokens there are or how the work is cut.
"""

from __future__ import annotations

import numpy as np

from kernels_cpu import features
from kernels_cpu.panel import MANY, PART, SIDE, by_panels
from kernels_cpu.parts import put, sum_of_span, total_of_span
from kernels_cpu.simd import (
    fma,
    load_bfloat,
    load_f32,
    load_half,
    mul,
    prefetch,
    splat_f32,
    spread_f32,
    sub,
    to_float,
)
from kernels_cpu.simd_int import byte_of, dot4, splat_i32, spread_i32
from kernels_cpu.stack import stack_f32
from kernels_cpu.tiles import TILES
from kernels_cpu.vectors import f32_registers, i32_registers
from llama3jit.ops.faces import specialise
from llama3jit.ops.op import AS_WRITTEN, op

LANES = 16
GROUPS = 2  # groups of 16 rows in a tile, so 32 rows to an item
# Tokens of a large tile: with 32 registers 24 hold sums; fewer and narrower ones hold less.
TOKENS = 6 if features.has("avx512f") else 2
SUMS = TOKENS * GROUPS
SCALES = 256  # floats: a vector for each of up to 16 spans
LINE = 64  # bytes of a cache line
AHEAD = 8192  # bytes


def int8_tile(out, weight, xq, xs, xsum, xtotal, first, t):
    """Outputs of tokens t to t + TOKENS - 1 and the 32 rows from `first` on."""
    width = xq.shape[1]
    blocks = xs.shape[1]
    tiles = 32 * blocks // COLUMNS
    scales_low = stack_f32(SCALES)
    minima_low = stack_f32(SCALES)
    scales_high = stack_f32(SCALES)
    minima_high = stack_f32(SCALES)
    totals = f32_registers(SUMS)
    for i in range(SUMS):
        totals[i] = splat_f32(np.float32(0.0))
    dots = i32_registers(SUMS)
    for b in range(tiles):
        low = first // LANES * tiles * TILE + b * 2 * TILE
        high = low + TILE
        if TOKENS < 4:
            # So few tokens wait for memory: ask for what comes after this tile's rows.
            for line in range(2 * TILE // LINE):
                prefetch(weight, low + AHEAD + line * LINE)
        scales_of(scales_low, minima_low, weight, low)
        scales_of(scales_high, minima_high, weight, high)
        for s in range(SPANS):
            k = COLUMNS * b + 4 * QUADS * s
            for i in range(TOKENS):
                start = splat_i32(np.int32(-ZERO * sum_of_span(xsum, t + i, k, 2 * blocks)))
                dots[2 * i] = start
                dots[2 * i + 1] = start
            for quad in range(QUADS):
                q_low = quad_of(weight, low, s, quad)
                q_high = quad_of(weight, high, s, quad)
                for i in range(TOKENS):
                    x = spread_i32(xq, (t + i) * width + k + 4 * quad)
                    dots[2 * i] = dot4(dots[2 * i], q_low, x)
                    dots[2 * i + 1] = dot4(dots[2 * i + 1], q_high, x)
            d_low = load_f32(scales_low, s * LANES)
            d_high = load_f32(scales_high, s * LANES)
            for i in range(TOKENS):
                x = spread_f32(xs, (t + i) * blocks + k // 32)
                totals[2 * i] = fma(to_float(dots[2 * i]), mul(d_low, x), totals[2 * i])
                totals[2 * i + 1] = fma(
                    to_float(dots[2 * i + 1]), mul(d_high, x), totals[2 * i + 1]
                )
            if MINIMA:
                m_low = load_f32(minima_low, s * LANES)
                m_high = load_f32(minima_high, s * LANES)
                for i in range(TOKENS):
                    x = total_of_span(xs, xsum, xtotal, t + i, k, 2 * blocks)
                    totals[2 * i] = fma(m_low, x, totals[2 * i])
                    totals[2 * i + 1] = fma(m_high, x, totals[2 * i + 1])
    n = out.shape[1]
    for i in range(TOKENS):
        put(out, (t + i) * n + first, n - first, totals[2 * i])
        put(out, (t + i) * n + first + LANES, n - first - LANES, totals[2 * i + 1])


int8_tile_1 = specialise(int8_tile, TOKENS=1, SUMS=2)
int8_tile_2 = specialise(int8_tile, TOKENS=2, SUMS=4)


@op(variants=TILES, fastmath=AS_WRITTEN)
def matmul_int8(
    out: f32[T, N],
    weight: u8[rows, row_bytes],
    xq: i8[T, width],
    xs: f32[T, blocks],
    xsum: i32[T, halves],
    xtotal: f32[T, blocks],
    items: rows // 32 * ((T + 127) // 128),
):
    """As llama3jit.ops.matmul.matmul_int8, on a packed weight."""
    pairs = weight.shape[0] // 32
    for item in items:
        first = item % pairs * 32
        t = item // pairs * PART
        end = min(t + PART, out.shape[0])
        if end - t >= MANY:
            whole = end - (end - t) % SIDE
            by_panels(out, weight, xq, xs, xsum, xtotal, first, t, whole)
            t = whole
        while t + TOKENS <= end:
            int8_tile(out, weight, xq, xs, xsum, xtotal, first, t)
            t += TOKENS
        while t + 2 <= end:
            int8_tile_2(out, weight, xq, xs, xsum, xtotal, first, t)
            t += 2
        if t < end:
            int8_tile_1(out, weight, xq, xs, xsum, xtotal, first, t)


def integer_columns(totals, weight, x, first, t):
    """Add to the totals all columns of a quantised weight, dequantised in registers."""
    n_k = x.shape[1]
    tiles = n_k // COLUMNS
    zero = splat_f32(np.float32(ZERO))
    m_low = splat_f32(np.float32(0.0))
    m_high = m_low
    scales_low = stack_f32(SCALES)
    minima_low = stack_f32(SCALES)
    scales_high = stack_f32(SCALES)
    minima_high = stack_f32(SCALES)
    for b in range(tiles):
        low = first // LANES * tiles * TILE + b * 2 * TILE
        high = low + TILE
        scales_of(scales_low, minima_low, weight, low)
        scales_of(scales_high, minima_high, weight, high)
        for s in range(SPANS):
            d_low = load_f32(scales_low, s * LANES)
            d_high = load_f32(scales_high, s * LANES)
            if MINIMA:
                m_low = load_f32(minima_low, s * LANES)
                m_high = load_f32(minima_high, s * LANES)
            for quad in range(QUADS):
                q_low = quad_of(weight, low, s, quad)
                q_high = quad_of(weight, high, s, quad)
                k = COLUMNS * b + 4 * (QUADS * s + quad)
                for j in range(4):
                    w_low = fma(sub(byte_of(q_low, j), zero), d_low, m_low)
                    w_high = fma(sub(byte_of(q_high, j), zero), d_high, m_high)
                    for i in range(TOKENS):
                        spread = spread_f32(x, (t + i) * n_k + k + j)
                        totals[2 * i] = fma(w_low, spread, totals[2 * i])
                        totals[2 * i + 1] = fma(w_high, spread, totals[2 * i + 1])


def float_columns(totals, weight, x, first, t):
    """Add to the totals all columns of a weight of plain floats."""
    n_k = x.shape[1]
    for k in range(n_k):
        at = (first * n_k + k * 2 * LANES) * VALUE_BYTES
        w_low = load_value(weight, at)
        w_high = load_value(weight, at + LANES * VALUE_BYTES)
        for i in range(TOKENS):
            spread = spread_f32(x, (t + i) * n_k + k)
            totals[2 * i] = fma(w_low, spread, totals[2 * i])
            totals[2 * i + 1] = fma(w_high, spread, totals[2 * i + 1])


FLOATS = {
    "f32": {"load_value": load_f32, "VALUE_BYTES": 4},
    "f16": {"load_value": load_half, "VALUE_BYTES": 2},
    "bf16": {"load_value": load_bfloat, "VALUE_BYTES": 2},
}

EVERY = {name: {**row, "columns": integer_columns} for name, row in TILES.items()}
EVERY |= {name: {**row, "columns": float_columns} for name, row in FLOATS.items()}


def tile(out, weight, x, first, t):
    """As int8_tile, on float32 activations."""
    totals = f32_registers(SUMS)
    for i in range(SUMS):
        totals[i] = splat_f32(np.float32(0.0))
    columns(totals, weight, x, first, t)
    n = out.shape[1]
    for i in range(TOKENS):
        put(out, (t + i) * n + first, n - first, totals[2 * i])
        put(out, (t + i) * n + first + LANES, n - first - LANES, totals[2 * i + 1])


tile_1 = specialise(tile, TOKENS=1, SUMS=2)
tile_2 = specialise(tile, TOKENS=2, SUMS=4)


@op(variants=EVERY, fastmath=AS_WRITTEN)
def matmul(
    out: f32[T, N],
    weight: u8[rows, row_bytes],
    x: f32[T, K],
    items: rows // 32 * ((T + 127) // 128),
):
    """As llama3jit.ops.matmul.matmul, on a packed weight."""
    pairs = weight.shape[0] // 32
    for item in items:
        first = item % pairs * 32
        t = item // pairs * PART
        end = min(t + PART, out.shape[0])
        while t + TOKENS <= end:
            tile(out, weight, x, first, t)
            t += TOKENS
        while t + 2 <= end:
            tile_2(out, weight, x, first, t)
            t += 2
        if t < end:
            tile_1(out, weight, x, first, t)
