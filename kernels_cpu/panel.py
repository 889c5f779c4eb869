"""A panel: some columns of 32 packed rows, unpacked once for the many tokens that they meet.

Unpacking costs a good part of what the dot products do, so a prompt is better served by rows that
lie in the first-level cache as bytes and floats. Sums, formulas and their order are those of
kernels_cpu.matmul.int8_tile, and so are the bits.
"""

from __future__ import annotations

import numpy as np

from kernels_cpu import features
from kernels_cpu.amx import configure_tiles, release_tiles
from kernels_cpu.parts import put, sum_of_span, total_of_span
from kernels_cpu.simd import (
    fma,
    in_order,
    load_f32,
    mul,
    prefetch,
    spread_f32,
    store_f32,
    to_float,
)
from kernels_cpu.simd_int import add_u8, dot4, load_u8, splat_i32, splat_u8, spread_i32, store_u8
from kernels_cpu.square import PRODUCTS, SQUARE, square_tile
from kernels_cpu.stack import stack_f32, stack_i32, stack_u8
from kernels_cpu.vectors import i32_registers

LANES = 16
PAIR = 2 * LANES  # rows
REGISTER = 64  # bytes; a cache line too
PART = 128  # tokens of an item: their activations stay near while the rows pass by
MANY = 16  # tokens from which on a panel pays
HAS_TILES = features.has("amx-int8")
# Tokens of a tile. Of a panel_tile only whole numbers stay in registers.
SIDE = SQUARE if HAS_TILES else 8 if features.has("avx512f") else 2
SUMS = 2 * SIDE
PANEL_COLUMNS = 640  # at most
PANEL_VALUES = PANEL_COLUMNS * PAIR
PANEL_SCALES = PANEL_COLUMNS // 16 * PAIR  # if all spans are of 16 columns
PART_SUMS = PART * PAIR


def unpack(values, scales, minima, weight, at, tiles):
    """The tiles of both groups of rows from byte `at` of the weight on: values[span, quad, group,
    64] as bytes, unsigned, for tile registers signed; scales and minima[tile, group, span, 16]."""
    value = 0
    vector = 0
    bias = splat_u8(-ZERO if HAS_TILES else 0)
    for _ in range(tiles):
        for group in range(2):
            scales_of(scales[vector:], minima[vector:], weight, at + group * TILE)
            vector += SPANS * LANES
        for s in range(SPANS):
            for quad in range(QUADS):
                store_u8(values, value, add_u8(quad_of(weight, at, s, quad), bias))
                high = quad_of(weight, at + TILE, s, quad)
                store_u8(values, value + REGISTER, add_u8(high, bias))
                value += 2 * REGISTER
        at += 2 * TILE


def panel_tile(sums, values, scales, minima, xq, xs, xsum, xtotal, t, b, tiles):
    """Add the products of a panel with columns COLUMNS * b on of tokens t to t + SIDE - 1 to
    sums[token, 32]."""
    width = xq.shape[1]
    halves = xsum.shape[1]
    dots = i32_registers(SUMS)
    value = 0
    for tile in range(tiles):
        for s in range(SPANS):
            k = COLUMNS * (b + tile) + 4 * QUADS * s
            for i in range(SIDE):
                start = splat_i32(np.int32(-ZERO * sum_of_span(xsum, t + i, k, halves)))
                dots[2 * i] = start
                dots[2 * i + 1] = start
            for quad in range(QUADS):
                q_low = load_u8(values, value)
                q_high = load_u8(values, value + REGISTER)
                value += 2 * REGISTER
                for i in range(SIDE):
                    x = spread_i32(xq, (t + i) * width + k + 4 * quad)
                    dots[2 * i] = dot4(dots[2 * i], q_low, x)
                    dots[2 * i + 1] = dot4(dots[2 * i + 1], q_high, x)
                in_order()
            low = (2 * tile * SPANS + s) * LANES
            high = low + SPANS * LANES
            d_low = load_f32(scales, low)
            d_high = load_f32(scales, high)
            m_low = load_f32(minima, low)
            m_high = load_f32(minima, high)
            for i in range(SIDE):
                x = spread_f32(xs, (t + i) * (halves // 2) + k // 32)
                total_low = load_f32(sums, 2 * i * LANES)
                total_high = load_f32(sums, (2 * i + 1) * LANES)
                total_low = fma(to_float(dots[2 * i]), mul(d_low, x), total_low)
                total_high = fma(to_float(dots[2 * i + 1]), mul(d_high, x), total_high)
                if MINIMA:
                    x = total_of_span(xs, xsum, xtotal, t + i, k, halves)
                    total_low = fma(m_low, x, total_low)
                    total_high = fma(m_high, x, total_high)
                store_f32(sums, 2 * i * LANES, total_low)
                store_f32(sums, (2 * i + 1) * LANES, total_high)


def put_tile(out, sums, t, first):
    """Write the sums of SIDE tokens, while the next ones are worked on."""
    n = out.shape[1]
    for i in range(SIDE):
        at = (t + i) * n + first
        put(out, at, n - first, load_f32(sums, i * PAIR))
        put(out, at + LANES, n - first - LANES, load_f32(sums, i * PAIR + LANES))


def by_panels(out, weight, xq, xs, xsum, xtotal, first, t, end):
    """Outputs of tokens t to end - 1, at most PART and whole tiles of SIDE, and the 32 rows from
    `first` on."""
    values = stack_u8(PANEL_VALUES)
    scales = stack_f32(PANEL_SCALES)
    minima = stack_f32(PANEL_SCALES)
    sums = stack_f32(PART_SUMS)
    dots = stack_i32(PRODUCTS)
    config = stack_u8(64)
    sums[: (end - t) * PAIR] = np.float32(0.0)
    tiles = 32 * xs.shape[1] // COLUMNS
    if HAS_TILES:
        configure_tiles(config, QUADS)
    at = first // LANES * tiles * TILE
    most = PANEL_COLUMNS // COLUMNS
    panels = (tiles + most - 1) // most
    step = (tiles + panels - 1) // panels
    for b in range(0, tiles, step):
        n = min(step, tiles - b)
        unpack(values, scales, minima, weight, at, n)
        at += n * 2 * TILE
        ahead = at
        # What comes next is asked for a piece with each tile of tokens.
        lines = n * 2 * TILE // REGISTER // ((end - t) // SIDE) + 1
        for i in range(t, end, SIDE):
            mine = sums[(i - t) * PAIR :]
            if HAS_TILES:
                square_tile(mine, dots, values, scales, minima, xq, xs, xsum, xtotal, i, 0, b, n)
                square_tile(mine, dots, values, scales, minima, xq, xs, xsum, xtotal, i, 1, b, n)
            else:
                panel_tile(mine, values, scales, minima, xq, xs, xsum, xtotal, i, b, n)
            for line in range(lines):
                prefetch(weight, ahead + line * REGISTER)
            ahead += lines * REGISTER
            if b + n == tiles:
                put_tile(out, mine, i, first)
    if HAS_TILES:
        release_tiles()
