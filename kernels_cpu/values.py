"""Values of a packed tile of 16 rows: four columns of each row as unsigned bytes.

`quad_of(weight, tile, span, quad)` gives columns 4 quad to 4 quad + 3 of a span. What a format
adds to make its values unsigned is taken off again by the matmul (ZERO). Layouts inside a block are
those of ggml-common.h.
"""

from __future__ import annotations

from kernels_cpu.simd_int import (
    add_u8,
    load_u8,
    look_up,
    shifted_bytes,
    spread_bits,
)

LANES = 16


def whole_bytes(weight, tile, span, quad):
    return load_u8(weight, tile + VALUES * LANES + 64 * quad)


def half_bytes(weight, tile, span, quad):
    """32 nibbles in 16 bytes: the low halves are columns 0 to 15."""
    byte = load_u8(weight, tile + VALUES * LANES + 64 * (quad % 4))
    return shifted_bytes(byte, quad // 4 * 4, 15, 0)


def five_bits(weight, tile, span, quad):
    """As half_bytes, the fifth bit of column j in bit j of a word."""
    fifth = spread_bits(load_u8(weight, tile + HIGH_BITS * LANES), 4 * quad)
    return add_u8(half_bytes(weight, tile, span, quad), shifted_bytes(fifth, 0, 1, 4))


def half_bytes_of_pairs(weight, tile, span, quad):
    """Nibbles by spans of 32 columns: two spans in 32 bytes, low halves and high halves."""
    byte = load_u8(weight, tile + VALUES * LANES + 64 * (span // 2 * 8 + quad))
    return shifted_bytes(byte, span % 2 * 4, 15, 0)


def five_bits_of_pairs(weight, tile, span, quad):
    """As half_bytes_of_pairs, the fifth bits of a span in one bit plane."""
    plane = load_u8(weight, tile + HIGH_BITS * LANES + 64 * quad)
    return add_u8(half_bytes_of_pairs(weight, tile, span, quad), shifted_bytes(plane, span, 1, 4))


def two_bits(weight, tile, span, quad):
    """Spans of 16 columns: four pairs of them in 32 bytes, two bits each; twice."""
    byte = load_u8(weight, tile + VALUES * LANES + 64 * (span // 8 * 8 + span % 2 * 4 + quad))
    return shifted_bytes(byte, span % 8 // 2 * 2, 3, 0)


def three_bits(weight, tile, span, quad):
    """As two_bits, the third bit in a mask of 32 bytes, a bit plane for each pair of spans."""
    mask = load_u8(weight, tile + 64 * (span % 2 * 4 + quad))
    return add_u8(two_bits(weight, tile, span, quad), shifted_bytes(mask, span // 2, 1, 2))


def six_bits(weight, tile, span, quad):
    """Spans of 16 columns, eight for each half of the block: nibbles of 64 bytes, then two high
    bits of 32."""
    half, pair, side = span // 8, span % 8 // 2, span % 2
    nibble = load_u8(weight, tile + 64 * (16 * half + 8 * (pair % 2) + 4 * side + quad))
    high = load_u8(weight, tile + 128 * LANES + 64 * (8 * half + 4 * side + quad))
    return add_u8(shifted_bytes(nibble, pair // 2 * 4, 15, 0), shifted_bytes(high, pair * 2, 3, 4))


def looked_up(weight, tile, span, quad):
    """As half_bytes, through a table of 16 values."""
    return look_up(half_bytes(weight, tile, span, quad), TABLE)


def looked_up_of_pairs(weight, tile, span, quad):
    """As half_bytes by spans of 16 bytes each, through a table of 16 values."""
    byte = load_u8(weight, tile + VALUES * LANES + 64 * (4 * span + quad % 4))
    return look_up(shifted_bytes(byte, quad // 4 * 4, 15, 0), TABLE)
