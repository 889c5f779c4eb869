"""Blocks of 256 digits q of 0, 1 or 2, for -d, 0 and d.

A byte of TQ1_0 is the fraction 0.qqqqq in base 3, in 256ths and rounded up: 3^m times it, less the
whole, begins with digit m. Bytes 0 to 31 hold values 0 to 159 (those 32 apart share a byte), 32 to
47 values 160 to 239 (16 apart), 48 to 51 values 240 to 255 (4 apart). In TQ2_0 a digit has 2 bits,
as in Q2_K.
"""

from __future__ import annotations

import numpy as np

from llama3jit.ops.blocks import byte_at, half_at, halves
from llama3jit.ops.k_quants import all_two_bits, two_bits

POWERS = np.array([1, 3, 9, 27, 81], np.int32)


def tq1_0(weight, n, k):
    """48 bytes of 5 digits, 4 of 4 digits, d: d * (q - 1)"""
    at, i = k // 256 * 54, k % 256
    if i < 160:
        byte, digit = i % 32, i // 32
    elif i < 240:
        byte, digit = 32 + (i - 160) % 16, (i - 160) // 16
    else:
        byte, digit = 48 + (i - 240) % 4, (i - 240) // 4
    fraction = byte_at(weight, n, at + byte) * POWERS[digit] & 255
    return half_at(weight, n, at + 52) * np.float32((fraction * 3 >> 8) - 1)


def tq1_0_values(blocks):
    runs = [(0, 32, 5), (32, 48, 5), (48, 52, 4)]
    fractions = [
        (blocks[:, None, first:end] * POWERS[:n, None].astype(np.uint8)).reshape(len(blocks), -1)
        for first, end, n in runs
    ]
    q = np.concatenate(fractions, axis=1).astype(np.uint16) * 3 >> 8
    return halves(blocks, 52) * (q.astype(np.float32) - np.float32(1))


def tq2_0(weight, n, k):
    """64 bytes of 4 digits, d: d * (q - 1)"""
    at = k // 256 * 66
    return half_at(weight, n, at + 64) * np.float32(two_bits(weight, n, at, k % 256) - 1)


def tq2_0_values(blocks):
    return halves(blocks, 64) * (all_two_bits(blocks, 0).astype(np.float32) - np.float32(1))


# See llama3jit.ops.dequantise.
ROWS = {
    "tq1_0": (54, tq1_0, tq1_0_values),
    "tq2_0": (66, tq2_0, tq2_0_values),
}
