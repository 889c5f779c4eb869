"""Reading blocks: the bytes of one, for compiled ops, and of many, in NumPy."""

from __future__ import annotations

import numpy as np

from llama3jit.ops.bits import half_to_float


def byte_at(weight, n, at):
    return np.int32(weight[n, at])


def word_at(weight, n, at):
    return byte_at(weight, n, at) | byte_at(weight, n, at + 1) << 8


def half_at(weight, n, at):
    return half_to_float(np.uint16(weight[n, at] | np.uint16(weight[n, at + 1]) << np.uint16(8)))


def halves(blocks, at):
    """The f16 at byte `at` of every block, as a float32 column."""
    return blocks[:, at : at + 2].copy().view(np.float16).astype(np.float32)


def field(blocks, at, shift, mask):
    """Bits of every block: of the byte at[i] those from bit shift[i] on, as many as the mask has;
    u8[n_blocks, len(at)]."""
    return blocks[:, at] >> np.asarray(shift).astype(np.uint8) & np.uint8(mask)
