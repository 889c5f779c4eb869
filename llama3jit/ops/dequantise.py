"""Block formats to float32: for each format one value at a time, for compiled ops, and a whole
tensor, in NumPy.

Layouts are those of ggml-common.h; the docstring of a format's function gives the bytes of a block
in order, then a value's formula. `d`, `dmin` and `m` without a size are f16. An op that reads
weights takes `dequantise(weight, n, k)`, with `weight: u8[N, row_bytes]` as it lies in the file.
The two forms round in one place at most (where a minimum is added to an exact product), so they
agree to the bit, however products are ordered or fused.
"""

from __future__ import annotations

import numpy as np

from llama3jit.ops import blocks_32, codebooks, i_quants, k_quants, ternary
from llama3jit.ops.bits import bits_to_float
from llama3jit.ops.blocks import half_at, word_at


def power_of_two(exponent):
    """2^exponent as a float64, for -126 <= exponent <= 127; infinity for 128."""
    return np.float64(bits_to_float(np.int32(exponent + 127 << 23)))


def f64(weight, n, k):
    """A double, rounded once to float32"""
    at = 8 * k
    top = word_at(weight, n, at + 6)
    fraction = np.float64(top & 15)
    for i in range(3):
        word = np.float64(word_at(weight, n, at + 4 - 2 * i))
        fraction = fraction * np.float64(65536.0) + word
    mantissa = np.float64(1.0) + fraction * np.float64(2.0**-52)
    exponent = (top >> 4 & 2047) - 1023
    if exponent == 1024 and fraction > 0:
        mantissa = np.float64(np.nan)
    # What is too large or too small for a float32 may as well be 2^128 or 2^-200.
    exponent = min(max(exponent, -200), 128)
    value = mantissa * power_of_two(max(exponent, -126)) * power_of_two(min(exponent + 126, 0))
    return np.float32(-value if top >> 15 else value)


def f64_values(blocks):
    with np.errstate(over="ignore"):
        return blocks.copy().view(np.float64).astype(np.float32)


def f32(weight, n, k):
    """A float"""
    return bits_to_float(np.int32(word_at(weight, n, 4 * k) | word_at(weight, n, 4 * k + 2) << 16))


def f32_values(blocks):
    return blocks.copy().view(np.float32)


def f16(weight, n, k):
    """A half"""
    return half_at(weight, n, 2 * k)


def f16_values(blocks):
    return blocks.copy().view(np.float16).astype(np.float32)


def bf16(weight, n, k):
    """The upper 16 bits of a float"""
    return bits_to_float(np.int32(word_at(weight, n, 2 * k) << 16))


def bf16_values(blocks):
    return (blocks.copy().view(np.uint16).astype(np.uint32) << 16).view(np.float32)


# Format -> bytes of a block, value k of row n of a weight, and the values of whole blocks:
# u8[n_blocks, block_bytes] to float32[n_blocks, block_size].
ROWS = {
    "f64": (8, f64, f64_values),
    "f32": (4, f32, f32_values),
    "f16": (2, f16, f16_values),
    "bf16": (2, bf16, bf16_values),
    **blocks_32.ROWS,
    **k_quants.ROWS,
    **codebooks.ROWS,
    **i_quants.ROWS,
    **ternary.ROWS,
}

BLOCK_BYTES = {name: block_bytes for name, (block_bytes, _, _) in ROWS.items()}

# One variant a format, for the ops that read weights.
FORMATS = {name: {"dequantise": function} for name, (_, function, _) in ROWS.items()}

VALUES = {name: values for name, (_, _, values) in ROWS.items()}


def rows(weight, variant):
    """Dequantised rows: weight u8[N, row_bytes] to float32[N, K]."""
    blocks = np.ascontiguousarray(weight).reshape(-1, BLOCK_BYTES[variant])
    return VALUES[variant](blocks).reshape(len(weight), -1)
