"""Weights interleaved for vector kernels, by whole words."""

from __future__ import annotations

from kernels_cpu.memory import load_u16, load_u32, store_u16, store_u32
from llama3jit.ops.op import op
from llama3jit.ops.pack import LANES, LAYOUTS

# A byte's worth in each byte of a word. Only 128 is ever added, which turns a byte's highest bit
# over, so that words can be taken for bytes.
EACH_BYTE = 0x01010101


def place(packed, to, weight, at, piece, bias):
    """Copy one piece; `at` below 0 is a row of zero bytes."""
    if piece == 4:
        word = load_u32(weight, at) if at >= 0 else 0
        store_u32(packed, to, word ^ (bias * EACH_BYTE))
    elif piece == 2:
        store_u16(packed, to, load_u16(weight, at) if at >= 0 else 0)
    else:
        packed[to] = weight[at // weight.shape[1], at % weight.shape[1]] if at >= 0 else 0


@op(variants=LAYOUTS)
def pack(packed: u8[size], weight: u8[N, row_bytes], items: size // (16 * row_bytes)):
    """As llama3jit.ops.pack.pack; an item is a group of 16 rows."""
    row_bytes = weight.shape[1]
    for group in items:
        for block in range(0, row_bytes, BLOCK_BYTES):
            tile = (group // 2 * row_bytes + block) * 2 * LANES + group % 2 * BLOCK_BYTES * LANES
            start = 0
            for s in range(len(SECTIONS)):
                size, piece, bias = SECTIONS[s]
                for r in range(LANES):
                    n = group * LANES + r
                    at = n * row_bytes + block + start if n < weight.shape[0] else -row_bytes
                    for i in range(size // piece):
                        to = tile + start * LANES + (i * LANES + r) * piece
                        place(packed, to, weight, at + i * piece, piece, bias)
                start += size
