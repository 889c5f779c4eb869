"""Block formats to float32: for each format one value at a time, for compiled ops, and a whole
tensor, in NumPy.

Layouts are those of ggml-common.h. A value k of a row lies in block k // 32 (or by itself);
`d` is the block's scale and `m` its minimum, both f16; nibble j < 16 of a block is the low half of
byte j, nibble j + 16 the high half. An op that reads weights takes `dequantise(weight, n, k)`,
with `weight: u8[N, row_bytes]` as it lies in the file.
"""

from __future__ import annotations

import numpy as np

from llama3jit.ops.bits import bits_to_float, half_to_float


def half_at(weight, n, at):
    return half_to_float(np.uint16(weight[n, at] | np.uint16(weight[n, at + 1]) << np.uint16(8)))


def f32(weight, n, k):
    at = 4 * k
    bits = np.int32(weight[n, at]) | np.int32(weight[n, at + 1]) << 8
    return bits_to_float(
        bits | np.int32(weight[n, at + 2]) << 16 | np.int32(weight[n, at + 3]) << 24
    )


def f16(weight, n, k):
    return half_at(weight, n, 2 * k)


def bf16(weight, n, k):
    at = 2 * k
    return bits_to_float(np.int32(weight[n, at]) << 16 | np.int32(weight[n, at + 1]) << 24)


def q8_0(weight, n, k):
    at = k // 32 * 34
    return half_at(weight, n, at) * np.float32(np.int8(weight[n, at + 2 + k % 32]))


def nibble(weight, n, at, j):
    byte = np.int32(weight[n, at + j % 16])
    return byte & 15 if j < 16 else byte >> 4


def q4_0(weight, n, k):
    at = k // 32 * 18
    return half_at(weight, n, at) * np.float32(nibble(weight, n, at + 2, k % 32) - 8)


def q4_1(weight, n, k):
    at = k // 32 * 20
    q = np.float32(nibble(weight, n, at + 4, k % 32))
    return half_at(weight, n, at) * q + half_at(weight, n, at + 2)


def halves(blocks, at):
    """The f16 at byte `at` of every block, as a float32 column."""
    return blocks[:, at : at + 2].copy().view(np.float16).astype(np.float32)


def nibbles(blocks, at):
    quants = blocks[:, at : at + 16]
    return np.concatenate([quants & 15, quants >> 4], axis=1).astype(np.float32)


def bf16_values(blocks):
    return (blocks.copy().view(np.uint16).astype(np.uint32) << 16).view(np.float32)


# Format -> blocks u8[n_blocks, block_bytes] to float32[n_blocks, block_size].
VALUES = {
    "f32": lambda blocks: blocks.copy().view(np.float32),
    "f16": lambda blocks: blocks.copy().view(np.float16).astype(np.float32),
    "bf16": bf16_values,
    "q8_0": lambda blocks: halves(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32),
    "q4_0": lambda blocks: halves(blocks, 0) * (nibbles(blocks, 2) - np.float32(8)),
    "q4_1": lambda blocks: halves(blocks, 0) * nibbles(blocks, 4) + halves(blocks, 2),
}

# The bytes of a block, for VALUES; the rest is in llama3jit.files.formats.
BLOCK_BYTES = {"f32": 4, "f16": 2, "bf16": 2, "q8_0": 34, "q4_0": 18, "q4_1": 20}

# One variant a format, for the ops that read weights.
FORMATS = {
    name: {"dequantise": function}
    for name, function in {
        "f32": f32,
        "f16": f16,
        "bf16": bf16,
        "q8_0": q8_0,
        "q4_0": q4_0,
        "q4_1": q4_1,
    }.items()
}


def rows(weight, variant):
    """Dequantised rows: weight u8[N, row_bytes] to float32[N, K]."""
    blocks = np.ascontiguousarray(weight).reshape(-1, BLOCK_BYTES[variant])
    return VALUES[variant](blocks).reshape(len(weight), -1)
