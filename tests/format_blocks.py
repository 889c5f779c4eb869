"""Weights of any block format, of any bytes but with scales that make them ordinary, and what the
gguf package reads in them."""

from __future__ import annotations

import numpy as np
import pytest

from llama3jit.files.formats import FORMATS

# Where a block's halves lie, and what each is for a scale of 1: where there is a minimum it is such
# that the values' mean is about 0. IQ1_M keeps its half in pieces; MXFP4 and NVFP4 have none.
HALVES = {
    "q4_0": {0: 1.0},
    "q4_1": {0: 1.0, 2: -7.5},
    "q5_0": {0: 1.0},
    "q5_1": {0: 1.0, 2: -15.5},
    "q8_0": {0: 1.0},
    "q2_k": {80: 1.0, 82: 1.5},
    "q3_k": {108: 1.0},
    "q4_k": {0: 1.0, 2: 7.5},
    "q5_k": {0: 1.0, 2: 15.5},
    "q6_k": {208: 1.0},
    "iq4_nl": {0: 1.0},
    "iq4_xs": {0: 1.0},
    "iq1_s": {0: 1.0},
    "iq1_m": {},
    "iq2_xxs": {0: 1.0},
    "iq2_xs": {0: 1.0},
    "iq2_s": {0: 1.0},
    "iq3_xxs": {0: 1.0},
    "iq3_s": {0: 1.0},
    "tq1_0": {52: 1.0},
    "tq2_0": {64: 1.0},
    "mxfp4": {},
    "nvfp4": {},
}
# Where a block's minimum lies, and where its quants do.
MINIMA = {
    "q4_1": (2, slice(4, 20)),
    "q5_1": (2, slice(4, 24)),
    "q2_k": (82, slice(16, 80)),
    "q4_k": (2, slice(16, 144)),
    "q5_k": (2, slice(16, 176)),
}
FLOATS = {"f64": np.float64, "f32": np.float32, "f16": np.float16}


def put_half(blocks: np.ndarray, variant: str, at: int, half: np.ndarray) -> None:
    """Store halves u16[n_blocks] as that half of the blocks; `at` is 0 for IQ1_M."""
    if variant == "iq1_m":
        for i in range(4):
            top = (half >> 4 * i & 15) << 4
            blocks[:, 49 + 2 * i] = blocks[:, 49 + 2 * i] & 15 | top
    else:
        blocks[:, at : at + 2] = half.astype("<u2").view(np.uint8).reshape(-1, 2)


def random_weight(
    rng: np.random.Generator, variant: str, n: int, k: int, size: float = 1.0
) -> np.ndarray:
    """u8[n, row_bytes]: n rows of k values of about that size, with scales of both signs."""
    if variant in FLOATS:
        values = size * rng.standard_normal((n, k))
        return values.astype(FLOATS[variant]).view(np.uint8)
    if variant == "bf16":
        values = (size * rng.standard_normal((n, k))).astype(np.float32)
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    form = FORMATS[variant.upper()]
    blocks = rng.integers(0, 256, (n * k // form.block_size, form.block_bytes), np.uint8)
    scales = np.ones(len(blocks))
    put_scales(blocks, variant, scales)
    unit = values_of(blocks, variant).astype(np.float64).std()
    scales = size / unit * rng.uniform(0.5, 1.5, len(blocks)) * rng.choice([-1, 1], len(blocks))
    put_scales(blocks, variant, scales)
    return blocks.reshape(n, -1)


def extreme_weight(rng: np.random.Generator, variant: str, n: int, k: int) -> np.ndarray:
    """u8[n, row_bytes] of a quantised format: scales of 1, and all else at its ends, small scales
    as well as quants. Rows of one byte, then rows of any of those bytes."""
    form = FORMATS[variant.upper()]
    ends = np.array([0x00, 0xFF, 0x0F, 0xF0, 0x7F, 0x80], np.uint8)
    blocks = rng.choice(ends, (n, k // form.block_size, form.block_bytes))
    blocks[: len(ends)] = ends[:n, None, None]
    flat = blocks.reshape(-1, form.block_bytes)
    put_scales(flat, variant, np.ones(len(flat)))
    return flat.reshape(n, -1)


def parts_of(weight: np.ndarray, variant: str) -> tuple[np.ndarray, np.ndarray]:
    """(steps, minima), float64[n, k] each, which add up to the values before those are rounded to
    float32: the values of the weight without minima, and without quants."""
    values = values_of(weight, variant).astype(np.float64)
    if variant not in MINIMA:
        return values, np.zeros_like(values)
    at, quants = MINIMA[variant]
    steps, minima = (weight.reshape(-1, FORMATS[variant.upper()].block_bytes).copy() for _ in "sm")
    steps[:, at : at + 2] = 0
    minima[:, quants] = 0
    parts = (values_of(part.reshape(len(weight), -1), variant) for part in (steps, minima))
    steps, minima = (part.astype(np.float64) for part in parts)
    assert np.array_equal((steps + minima).astype(np.float32), values)
    return steps, minima


def put_scales(blocks: np.ndarray, variant: str, scales: np.ndarray) -> None:
    """Store scales float64[n_blocks], and minima to suit; MXFP4 and NVFP4 take the next powers of
    two, without signs."""
    exponents = np.rint(np.log2(np.abs(scales))).astype(np.int64)
    if variant == "mxfp4":
        blocks[:, 0] = np.clip(127 + exponents, 0, 254)
    elif variant == "nvfp4":
        blocks[:, :4] = np.clip(7 + exponents, 0, 15)[:, None] << 3 | blocks[:, :4] & 7
    elif variant == "iq1_m":
        put_half(blocks, variant, 0, scales.astype(np.float16).view(np.uint16))
    else:
        for at, factor in HALVES[variant].items():
            put_half(blocks, variant, at, (factor * scales).astype(np.float16).view(np.uint16))


def values_of(weight: np.ndarray, variant: str) -> np.ndarray:
    """The float32 values of rows u8[n, row_bytes], by the gguf package."""
    if variant in FLOATS:
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(weight).view(FLOATS[variant]).astype(np.float32)
    gguf = pytest.importorskip("gguf")
    values: np.ndarray = gguf.dequantize(weight, gguf.GGMLQuantizationType[variant.upper()])
    return values
