"""Scales and minima of a packed tile of 16 rows, as float vectors, a span of columns each.

`scales[16 s + r]` is what a stored value of row r in span s is multiplied by, `minima` what is then
added. Formulas are those of ggml-quants.c.
"""

from __future__ import annotations

import numpy as np

from kernels_cpu.simd import load_half, mul, negate, store_f32, to_float
from kernels_cpu.simd_int import (
    add_i32,
    bits_of,
    load_bytes,
    load_pairs,
    load_signed_bytes,
    or_shifted,
    power_of_two_bits,
    splat_i32,
)

LANES = 16


def half_scale(scales, minima, weight, tile):
    """One f16 scale."""
    store_f32(scales, 0, load_half(weight, tile))


def half_scale_and_minimum(scales, minima, weight, tile):
    """An f16 scale and an f16 minimum."""
    store_f32(scales, 0, load_half(weight, tile))
    store_f32(minima, 0, load_half(weight, tile + 2 * LANES))


def power_scale(scales, minima, weight, tile):
    """MXFP4: half of 2^(byte - 127), since its table holds doubled values."""
    store_f32(scales, 0, power_of_two_bits(load_bytes(weight, tile)))


def scales_q2_k(scales, minima, weight, tile):
    """16 bytes: the low half times d, the high half times -dmin."""
    d = load_half(weight, tile + 80 * LANES)
    dmin = negate(load_half(weight, tile + 82 * LANES))
    for s in range(16):
        both = load_bytes(weight, tile + s * LANES)
        store_f32(scales, s * LANES, mul(d, to_float(bits_of(both, 0, 15))))
        store_f32(minima, s * LANES, mul(dmin, to_float(bits_of(both, 4, 15))))


def scales_q3_k(scales, minima, weight, tile):
    """16 numbers of 6 bits, less 32: low halves in 8 bytes, two high bits in 4 more."""
    d = load_half(weight, tile + 108 * LANES)
    packed = tile + 96 * LANES
    for s in range(16):
        low = bits_of(load_bytes(weight, packed + s % 8 * LANES), s // 8 * 4, 15)
        high = bits_of(load_bytes(weight, packed + (8 + s % 4) * LANES), s // 4 * 2, 3)
        scale = add_i32(or_shifted(low, high, 4), splat_i32(np.int32(-32)))
        store_f32(scales, s * LANES, mul(d, to_float(scale)))


def scales_q4_k(scales, minima, weight, tile):
    """Eight pairs of 6 bits in 12 bytes."""
    d = load_half(weight, tile)
    dmin = negate(load_half(weight, tile + 2 * LANES))
    packed = tile + 4 * LANES
    for s in range(4):
        first = load_bytes(weight, packed + s * LANES)
        second = load_bytes(weight, packed + (s + 4) * LANES)
        third = load_bytes(weight, packed + (s + 8) * LANES)
        later = or_shifted(bits_of(third, 0, 15), bits_of(first, 6, 3), 4)
        later_minimum = or_shifted(bits_of(third, 4, 15), bits_of(second, 6, 3), 4)
        store_f32(scales, s * LANES, mul(d, to_float(bits_of(first, 0, 63))))
        store_f32(minima, s * LANES, mul(dmin, to_float(bits_of(second, 0, 63))))
        store_f32(scales, (s + 4) * LANES, mul(d, to_float(later)))
        store_f32(minima, (s + 4) * LANES, mul(dmin, to_float(later_minimum)))


def scales_q6_k(scales, minima, weight, tile):
    """16 signed bytes."""
    d = load_half(weight, tile + 208 * LANES)
    for s in range(16):
        scale = load_signed_bytes(weight, tile + (192 + s) * LANES)
        store_f32(scales, s * LANES, mul(d, to_float(scale)))


def scales_iq4_xs(scales, minima, weight, tile):
    """Eight numbers of 6 bits, less 32: low halves in 4 bytes, high bits in a 16-bit word."""
    d = load_half(weight, tile)
    for s in range(8):
        low = bits_of(load_bytes(weight, tile + (4 + s // 2) * LANES), s % 2 * 4, 15)
        high = bits_of(load_pairs(weight, tile + 2 * LANES), 2 * s, 3)
        scale = add_i32(or_shifted(low, high, 4), splat_i32(np.int32(-32)))
        store_f32(scales, s * LANES, mul(d, to_float(scale)))
