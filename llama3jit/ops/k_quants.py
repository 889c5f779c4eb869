"""K-quants: blocks of 256 values, in parts of 16 or 32, each with a small integer scale s, and in
some a minimum m.

Values 32 apart share a byte, the first in the lowest bits: 4 runs of 32 values in bytes of 2 bits,
2 in bytes of nibbles (in Q6_K values 64 apart), 8 in bytes of single bits.
"""

from __future__ import annotations

import numpy as np

from llama3jit.ops.blocks import byte_at, field, half_at, halves

VALUE = np.arange(256)  # of a block
PART_OF_8 = np.arange(8)
PART_OF_16 = np.arange(16)


def spread(parts):
    """A float32 for each part of each block, to one for each value."""
    return np.repeat(parts.astype(np.float32), 256 // parts.shape[1], axis=1)


def two_bits(weight, n, at, i):
    return byte_at(weight, n, at + i // 128 * 32 + i % 32) >> i // 32 % 4 * 2 & 3


def all_two_bits(blocks, at):
    return field(blocks, at + VALUE // 128 * 32 + VALUE % 32, VALUE // 32 % 4 * 2, 3)


def one_bit(weight, n, at, i):
    return byte_at(weight, n, at + i % 32) >> i // 32 & 1


def all_one_bits(blocks, at):
    return field(blocks, at + VALUE % 32, VALUE // 32, 1)


def four_bits(weight, n, at, i):
    return byte_at(weight, n, at + i // 64 * 32 + i % 32) >> i // 32 % 2 * 4 & 15


def all_four_bits(blocks, at):
    return field(blocks, at + VALUE // 64 * 32 + VALUE % 32, VALUE // 32 % 2 * 4, 15)


def q2_k(weight, n, k):
    """16 bytes of s (low nibble) and m, 64 of 2 bits, d, dmin: d * s * q - dmin * m"""
    at, i = k // 256 * 84, k % 256
    part = byte_at(weight, n, at + i // 16)
    step = half_at(weight, n, at + 80) * np.float32(part & 15)
    minimum = half_at(weight, n, at + 82) * np.float32(part >> 4)
    return step * np.float32(two_bits(weight, n, at + 16, i)) - minimum


def q2_k_values(blocks):
    parts = blocks[:, :16]
    step, minimum = halves(blocks, 80) * (parts & 15), halves(blocks, 82) * (parts >> 4)
    return spread(step) * all_two_bits(blocks, 16) - spread(minimum)


def q3_k(weight, n, k):
    """32 bytes of third bits, 64 of 2 bits, 12 of s, d: d * (s - 32) * (q - 4)"""
    at, i = k // 256 * 110, k % 256
    part = i // 16
    low = byte_at(weight, n, at + 96 + part % 8) >> part // 8 * 4 & 15
    high = byte_at(weight, n, at + 104 + part % 4) >> part // 4 * 2 & 3
    step = half_at(weight, n, at + 108) * np.float32((low | high << 4) - 32)
    q = two_bits(weight, n, at + 32, i) + 4 * one_bit(weight, n, at, i) - 4
    return step * np.float32(q)


def q3_k_values(blocks):
    low = field(blocks, 96 + PART_OF_16 % 8, PART_OF_16 // 8 * 4, 15)
    high = field(blocks, 104 + PART_OF_16 % 4, PART_OF_16 // 4 * 2, 3)
    step = halves(blocks, 108) * ((low | high << 4).astype(np.float32) - np.float32(32))
    q = (all_two_bits(blocks, 32) | all_one_bits(blocks, 0) << 2).astype(np.float32)
    return spread(step) * (q - np.float32(4))


def six_bit_scale(weight, n, at, part):
    """s of a part of Q4_K and Q5_K, whose 12 bytes begin at `at`: parts 0 to 3 are the low 6 bits
    of bytes 0 to 3; parts 4 to 7 the low nibbles of bytes 8 to 11 and the top of bytes 0 to 3."""
    late = part // 4
    top = byte_at(weight, n, at + part - 4 * late) >> 6 << 4
    return byte_at(weight, n, at + part + 4 * late) & 63 - 48 * late | top * late


def six_bit_minimum(weight, n, at, part):
    """m in the same way: bytes 4 to 7, and the high nibbles of bytes 8 to 11."""
    late = part // 4
    top = byte_at(weight, n, at + part) >> 6 << 4
    return byte_at(weight, n, at + part + 4) >> 4 * late & 63 | top * late


def scales_and_minima(blocks):
    """(d * s, dmin * m) of every value of Q4_K or Q5_K."""
    first, second, third = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    s = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=1)
    m = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=1)
    return spread(halves(blocks, 0) * s), spread(halves(blocks, 2) * m)


def q4_k(weight, n, k):
    """d, dmin, 12 bytes of s and m, 128 of nibbles: d * s * q - dmin * m"""
    at, i = k // 256 * 144, k % 256
    step = half_at(weight, n, at) * np.float32(six_bit_scale(weight, n, at + 4, i // 32))
    minimum = half_at(weight, n, at + 2) * np.float32(six_bit_minimum(weight, n, at + 4, i // 32))
    return step * np.float32(four_bits(weight, n, at + 16, i)) - minimum


def q4_k_values(blocks):
    step, minimum = scales_and_minima(blocks)
    return step * all_four_bits(blocks, 16) - minimum


def q5_k(weight, n, k):
    """d, dmin, 12 bytes of s and m, 32 of fifth bits, 128 of nibbles: d * s * q - dmin * m"""
    at, i = k // 256 * 176, k % 256
    step = half_at(weight, n, at) * np.float32(six_bit_scale(weight, n, at + 4, i // 32))
    minimum = half_at(weight, n, at + 2) * np.float32(six_bit_minimum(weight, n, at + 4, i // 32))
    q = four_bits(weight, n, at + 48, i) | one_bit(weight, n, at + 16, i) << 4
    return step * np.float32(q) - minimum


def q5_k_values(blocks):
    step, minimum = scales_and_minima(blocks)
    return step * (all_four_bits(blocks, 48) | all_one_bits(blocks, 16) << 4) - minimum


def q6_k(weight, n, k):
    """128 bytes of nibbles, 64 of upper 2 bits, 16 of s, d: d * s * (q - 32)"""
    at, i = k // 256 * 210, k % 256
    low = byte_at(weight, n, at + i // 128 * 64 + i % 64) >> i // 64 % 2 * 4 & 15
    q = low | two_bits(weight, n, at + 128, i) << 4
    step = half_at(weight, n, at + 208) * np.float32(np.int8(weight[n, at + 192 + i // 16]))
    return step * np.float32(q - 32)


def q6_k_values(blocks):
    low = field(blocks, VALUE // 128 * 64 + VALUE % 64, VALUE // 64 % 2 * 4, 15)
    q = (low | all_two_bits(blocks, 128) << 4).astype(np.float32)
    step = halves(blocks, 208) * blocks[:, 192:208].view(np.int8)
    return spread(step) * (q - np.float32(32))


# See llama3jit.ops.dequantise.
ROWS = {
    "q2_k": (84, q2_k, q2_k_values),
    "q3_k": (110, q3_k, q3_k_values),
    "q4_k": (144, q4_k, q4_k_values),
    "q5_k": (176, q5_k, q5_k_values),
    "q6_k": (210, q6_k, q6_k_values),
}
