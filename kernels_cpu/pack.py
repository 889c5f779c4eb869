"""Weights interleaved for vector kernels, by whole words."""

from __future__ import annotations

from kernels_cpu.memory import load_u16, load_u32, store_u16, store_u32
from llama3jit.ops.op import op
from llama3jit.ops.pack import LANES, LAYOUTS

# 128 added to each of four bytes is their highest bit turned over.
TURNED = 0x80808080
WORDS = {
    variant: {**layout, "TURN": TURNED if layout["BIAS"] else 0}
    for variant, layout in LAYOUTS.items()
}


@op(variants=WORDS)
def pack(packed: u8[size], weight: u8[N, row_bytes], items: size // (16 * row_bytes)):
    """As llama3jit.ops.pack.pack; an item is a group of 16 rows."""
    row_bytes = weight.shape[1]
    block_bytes = HEAD + BODY
    for group in items:
        n = group * LANES
        rows = max(0, min(LANES, weight.shape[0] - n))
        for b in range(row_bytes // block_bytes):
            tile = (group // 2 * row_bytes + b * block_bytes) * 2 * LANES
            tile += group % 2 * block_bytes * LANES
            for r in range(rows):
                at = (n + r) * row_bytes + b * block_bytes
                for i in range(HEAD // 2):
                    store_u16(packed, tile + (i * LANES + r) * 2, load_u16(weight, at + 2 * i))
                at += HEAD
                to = tile + HEAD * LANES
                if BODY == 2:
                    store_u16(packed, to + r * 2, load_u16(weight, at))
                else:
                    for i in range(BODY // 4):
                        word = load_u32(weight, at + 4 * i) ^ TURN
                        store_u32(packed, to + (i * LANES + r) * 4, word)
            for r in range(rows, LANES):
                for i in range(HEAD // 2):
                    store_u16(packed, tile + (i * LANES + r) * 2, 0)
                to = tile + HEAD * LANES
                if BODY == 2:
                    store_u16(packed, to + r * 2, 0)
                else:
                    for i in range(BODY // 4):
                        store_u32(packed, to + (i * LANES + r) * 4, TURN)
