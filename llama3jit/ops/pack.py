"""Weights interleaved for vector kernels: 16 rows side by side, a lane a row.

A tile holds one block of columns (32, 256, or one plain float) of 16 rows: the bytes of their
blocks in the order that the format has them, but after each piece of one row comes the same piece
of the next. Pieces are the two bytes of a half (scales), single bytes (small scales), or four bytes
(values), so that 64 bytes hold the same four bytes of 16 rows. Tiles of two groups of rows
alternate, so that a kernel that works on 32 rows reads on and on. Bytes of Q8_0's values are stored
with 128 added, so that they are unsigned. Rows are padded to a multiple of 32 by zero bytes.
"""

from __future__ import annotations

import numpy as np

from llama3jit.ops.op import op

LANES = 16

# Format -> sections of a block: (bytes, bytes of a piece, what is added to each byte).
LAYOUTS = {
    name: {"SECTIONS": sections, "BLOCK_BYTES": sum(size for size, _, _ in sections)}
    for name, sections in {
        "f32": ((4, 4, 0),),
        "f16": ((2, 2, 0),),
        "bf16": ((2, 2, 0),),
        "q4_0": ((2, 2, 0), (16, 4, 0)),
        "q4_1": ((4, 2, 0), (16, 4, 0)),
        "q5_0": ((2, 2, 0), (4, 4, 0), (16, 4, 0)),
        "q5_1": ((4, 2, 0), (4, 4, 0), (16, 4, 0)),
        "q8_0": ((2, 2, 0), (32, 4, 128)),
        "q2_k": ((16, 1, 0), (64, 4, 0), (4, 2, 0)),
        "q3_k": ((32, 4, 0), (64, 4, 0), (12, 1, 0), (2, 2, 0)),
        "q4_k": ((4, 2, 0), (12, 1, 0), (128, 4, 0)),
        "q5_k": ((4, 2, 0), (12, 1, 0), (32, 4, 0), (128, 4, 0)),
        "q6_k": ((128, 4, 0), (64, 4, 0), (16, 1, 0), (2, 2, 0)),
        "iq4_nl": ((2, 2, 0), (16, 4, 0)),
        "iq4_xs": ((4, 2, 0), (4, 1, 0), (128, 4, 0)),
        "mxfp4": ((1, 1, 0), (16, 4, 0)),
    }.items()
}


def padded_rows(n):
    """Rows of the packed form of n rows."""
    return -(-n // 32) * 32


@op(variants=LAYOUTS)
def pack(packed: u8[size], weight: u8[N, row_bytes], items: size // (16 * row_bytes)):
    """Interleave the rows of each group of 16; same bytes, in another order."""
    row_bytes = weight.shape[1]
    for group in items:
        for block in range(0, row_bytes, BLOCK_BYTES):
            at = (group // 2 * row_bytes + block) * 2 * LANES + group % 2 * BLOCK_BYTES * LANES
            source = block
            for s in range(len(SECTIONS)):
                size, piece, bias = SECTIONS[s]
                for start in range(source, source + size, piece):
                    for n in range(group * LANES, group * LANES + LANES):
                        for i in range(start, start + piece):
                            byte = weight[n, i] if n < weight.shape[0] else 0
                            packed[at] = (byte + bias) & 255
                            at += 1
                source += size


@pack.reference
def pack_reference(packed, weight, variant):
    rows = np.zeros((packed.size // weight.shape[1], weight.shape[1]), np.uint8)
    rows[: len(weight)] = weight
    # [pair of groups, group, row, block, byte of the block]
    blocks = rows.reshape(len(rows) // (2 * LANES), 2, LANES, -1, LAYOUTS[variant]["BLOCK_BYTES"])
    tiles, start = [], 0
    for size, piece, bias in LAYOUTS[variant]["SECTIONS"]:
        part = blocks[..., start : start + size] + np.uint8(bias)
        pieces = part.reshape(*part.shape[:4], size // piece, piece)
        # [pair of groups, block, group, piece, row, byte of the piece]
        tile = pieces.transpose(0, 3, 1, 4, 2, 5)
        tiles.append(tile.reshape(*tile.shape[:3], -1))
        start += size
    packed[:] = np.concatenate(tiles, axis=3).reshape(-1)
