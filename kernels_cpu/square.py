"""Sixteen tokens by sixteen rows of a panel, multiplied by tile registers.

The products of whole numbers are exact, and what follows is that of kernels_cpu.panel.panel_tile:
so are the bits.
"""

from __future__ import annotations

from kernels_cpu.amx import multiply_tile
from kernels_cpu.parts import total_of_span
from kernels_cpu.simd import fma, load_f32, mul, spread_f32, store_f32, to_float
from kernels_cpu.simd_int import load_i32s
from kernels_cpu.vectors import f32_registers

LANES = 16
SQUARE = 16
REGISTER = 64
PRODUCTS = SQUARE * LANES


def square_tile(sums, dots, values, scales, minima, xq, xs, xsum, xtotal, t, group, b, tiles):
    """As panel_tile, for 16 tokens and one group of rows; values are signed, `dots` is scratch."""
    width = xq.shape[1]
    halves = xsum.shape[1]
    totals = f32_registers(SQUARE)
    for i in range(SQUARE):
        totals[i] = load_f32(sums, (2 * i + group) * LANES)
    value = group * REGISTER
    for tile in range(tiles):
        for s in range(SPANS):
            k = COLUMNS * (b + tile) + 4 * QUADS * s
            multiply_tile(dots, 0, xq, t * width + k, width, values, value, 2 * REGISTER)
            value += 2 * REGISTER * QUADS
            vector = ((2 * tile + group) * SPANS + s) * LANES
            d = load_f32(scales, vector)
            m = load_f32(minima, vector)
            for i in range(SQUARE):
                x = spread_f32(xs, (t + i) * (halves // 2) + k // 32)
                product = to_float(load_i32s(dots, i * LANES))
                totals[i] = fma(product, mul(d, x), totals[i])
                if MINIMA:
                    totals[i] = fma(m, total_of_span(xs, xsum, xtotal, t + i, k, halves), totals[i])
    for i in range(SQUARE):
        store_f32(sums, (2 * i + group) * LANES, totals[i])
