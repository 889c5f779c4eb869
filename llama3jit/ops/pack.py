"""Weights interleaved for vector kernels: 16 rows side by side, a lane a row.

A tile holds 32 columns of 16 rows: the rows' scales (f16), their minima where the format has them,
then the values, 4 columns of each row after the other, so that 64 bytes hold 4 columns of 16 rows.
Tiles of two groups of rows alternate, so that a kernel that works on 32 rows reads on and on.
Nibbles keep their pairing: the low half of a byte is column j of a block, the high half j + 16.
Bytes of Q8_0 are stored with 128 added, so that they are unsigned. Values of F32, F16 and BF16
lie column by column, in the same way. Rows are padded to a multiple of 32 by zero bytes.
"""

from __future__ import annotations

import numpy as np

from llama3jit.ops.op import op

LANES = 16

# Halves (scale, minimum) in front of a block, bytes of values behind them, what is added to each.
# For the plain floats a "block" is one value: nothing in front, so many bytes, nothing added.
LAYOUTS = {
    "q4_0": {"HEAD": 2, "BODY": 16, "BIAS": 0},
    "q4_1": {"HEAD": 4, "BODY": 16, "BIAS": 0},
    "q8_0": {"HEAD": 2, "BODY": 32, "BIAS": 128},
    "f32": {"HEAD": 0, "BODY": 4, "BIAS": 0},
    "f16": {"HEAD": 0, "BODY": 2, "BIAS": 0},
    "bf16": {"HEAD": 0, "BODY": 2, "BIAS": 0},
}


def padded_rows(n):
    """Rows of the packed form of n rows."""
    return -(-n // 32) * 32


@op(variants=LAYOUTS)
def pack(packed: u8[size], weight: u8[N, row_bytes], items: size // (16 * row_bytes)):
    """Interleave the rows of each group of 16; same bytes, in another order."""
    row_bytes = weight.shape[1]
    block_bytes = HEAD + BODY
    unit = 2 if HEAD > 0 else BODY  # bytes that stay together: a half in front, a whole float
    chunk = 4 if HEAD > 0 else BODY
    for group in items:
        for r in range(LANES):
            n = group * LANES + r
            for b in range(row_bytes // block_bytes):
                tile = (group // 2 * row_bytes + b * block_bytes) * 2 * LANES
                tile += group % 2 * block_bytes * LANES
                for i in range(HEAD):
                    at = tile + (i // unit * LANES + r) * unit + i % unit
                    packed[at] = weight[n, b * block_bytes + i] if n < weight.shape[0] else 0
                for i in range(BODY):
                    at = tile + HEAD * LANES + (i // chunk * LANES + r) * chunk + i % chunk
                    byte = weight[n, b * block_bytes + HEAD + i] if n < weight.shape[0] else 0
                    packed[at] = (byte + BIAS) & 255


@pack.reference
def pack_reference(packed, weight, variant):
    head, body, bias = LAYOUTS[variant].values()
    rows = np.zeros((packed.size // weight.shape[1], weight.shape[1]), np.uint8)
    rows[: len(weight)] = weight
    # [pair of groups, group, row, block, byte of the block]
    blocks = rows.reshape(len(rows) // (2 * LANES), 2, LANES, -1, head + body)
    chunk = 4 if head else body
    front = blocks[..., :head].reshape(*blocks.shape[:4], head // 2, 2)
    back = (blocks[..., head:] + np.uint8(bias)).reshape(*blocks.shape[:4], -1, chunk)
    # [pair of groups, block, group, chunk, row, byte of the chunk]
    tiles = [part.transpose(0, 3, 1, 4, 2, 5) for part in (front, back)]
    flat = [tile.reshape(*tile.shape[:3], -1) for tile in tiles]
    packed[:] = np.concatenate(flat, axis=3).reshape(-1)
