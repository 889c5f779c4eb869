"""Weights in block formats, and an independent reading of them: struct and plain Python."""

from __future__ import annotations

import struct

import numpy as np

BLOCK_BYTES = {"f32": 4, "f16": 2, "bf16": 2, "q8_0": 34, "q4_0": 18, "q4_1": 20}
QUANTISED = ("q8_0", "q4_0", "q4_1")


def random_blocks(rng: np.random.Generator, variant: str, n: int, k: int) -> np.ndarray:
    """A weight u8[n, row_bytes] of k values a row, with scales of both signs."""
    if variant == "f32":
        return rng.standard_normal((n, k)).astype(np.float32).view(np.uint8)
    if variant == "f16":
        return rng.standard_normal((n, k)).astype(np.float16).view(np.uint8)
    if variant == "bf16":
        bits = rng.standard_normal((n, k)).astype(np.float32).view(np.uint32) >> 16
        return bits.astype(np.uint16).view(np.uint8)
    size = BLOCK_BYTES[variant]
    blocks = rng.integers(0, 256, (n * k // 32, size), np.uint8)
    for at in (0, 2) if variant == "q4_1" else (0,):
        scales = (0.1 * rng.standard_normal(len(blocks))).astype(np.float16)
        blocks[:, at : at + 2] = scales.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(n, -1)


def values_of(weight: np.ndarray, variant: str) -> np.ndarray:
    """float64[n, k]; q4_1's sum as float32 has it, which is what the format means."""
    return np.array([_row(row.tobytes(), variant) for row in weight])


def _row(raw: bytes, variant: str) -> list[float]:
    if variant == "f32":
        return list(struct.unpack(f"<{len(raw) // 4}f", raw))
    if variant == "f16":
        return list(struct.unpack(f"<{len(raw) // 2}e", raw))
    if variant == "bf16":
        pairs = [b"\0\0" + raw[at : at + 2] for at in range(0, len(raw), 2)]
        return [struct.unpack("<f", pair)[0] for pair in pairs]
    values = []
    for at in range(0, len(raw), BLOCK_BYTES[variant]):
        block = raw[at : at + BLOCK_BYTES[variant]]
        (d,) = struct.unpack("<e", block[:2])
        if variant == "q8_0":
            values += [d * q for q in struct.unpack("<32b", block[2:])]
            continue
        (m,) = struct.unpack("<e", block[2:4]) if variant == "q4_1" else (-8 * d,)
        quants = block[4:] if variant == "q4_1" else block[2:]
        low, high = [q % 16 for q in quants], [q // 16 for q in quants]
        values += [float(np.float32(d * q + m)) for q in low + high]
    return values
