"""Blocks of 32 values with a scale, and in some a minimum.

Value j < 16 is the low half of byte j of the nibbles, value j + 16 its high half; fifth bits are
one word, that of value j in bit j.
"""

from __future__ import annotations

import numpy as np

from llama3jit.ops.blocks import byte_at, field, half_at, halves


def q8_0(weight, n, k):
    """d, 32 signed bytes: d * q"""
    at = k // 32 * 34
    return half_at(weight, n, at) * np.float32(np.int8(weight[n, at + 2 + k % 32]))


def q8_0_values(blocks):
    return halves(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)


def nibble(weight, n, at, j):
    byte = byte_at(weight, n, at + j % 16)
    return byte & 15 if j < 16 else byte >> 4


def nibbles(blocks, at):
    quants = blocks[:, at : at + 16]
    return np.concatenate([quants & 15, quants >> 4], axis=1)


def q4_0(weight, n, k):
    """d, 16 bytes of nibbles: d * (q - 8)"""
    at = k // 32 * 18
    return half_at(weight, n, at) * np.float32(nibble(weight, n, at + 2, k % 32) - 8)


def q4_0_values(blocks):
    return halves(blocks, 0) * (nibbles(blocks, 2).astype(np.float32) - np.float32(8))


def q4_1(weight, n, k):
    """d, m, 16 bytes of nibbles: d * q + m"""
    at = k // 32 * 20
    q = np.float32(nibble(weight, n, at + 4, k % 32))
    return half_at(weight, n, at) * q + half_at(weight, n, at + 2)


def q4_1_values(blocks):
    return halves(blocks, 0) * nibbles(blocks, 4).astype(np.float32) + halves(blocks, 2)


def five_bits(weight, n, at, j):
    """Value j of 32, the word of fifth bits at byte `at`, the nibbles behind it."""
    fifth = byte_at(weight, n, at + j // 8) >> j % 8 & 1
    return nibble(weight, n, at + 4, j) | fifth << 4


def all_five_bits(blocks, at):
    j = np.arange(32)
    return nibbles(blocks, at + 4) | field(blocks, at + j // 8, j % 8, 1) << 4


def q5_0(weight, n, k):
    """d, 4 bytes of fifth bits, 16 of nibbles: d * (q - 16)"""
    at = k // 32 * 22
    return half_at(weight, n, at) * np.float32(five_bits(weight, n, at + 2, k % 32) - 16)


def q5_0_values(blocks):
    return halves(blocks, 0) * (all_five_bits(blocks, 2).astype(np.float32) - np.float32(16))


def q5_1(weight, n, k):
    """d, m, 4 bytes of fifth bits, 16 of nibbles: d * q + m"""
    at = k // 32 * 24
    q = np.float32(five_bits(weight, n, at + 4, k % 32))
    return half_at(weight, n, at) * q + half_at(weight, n, at + 2)


def q5_1_values(blocks):
    return halves(blocks, 0) * all_five_bits(blocks, 4).astype(np.float32) + halves(blocks, 2)


# See llama3jit.ops.dequantise.
ROWS = {
    "q8_0": (34, q8_0, q8_0_values),
    "q4_0": (18, q4_0, q4_0_values),
    "q4_1": (20, q4_1, q4_1_values),
    "q5_0": (22, q5_0, q5_0_values),
    "q5_1": (24, q5_1, q5_1_values),
}
