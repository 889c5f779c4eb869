"""Sequences in a paged cache whose blocks lie in any order."""

from __future__ import annotations

from dataclasses import dataclass

import gguf
import numpy as np

from llama3jit.ops.kv_dtypes import shapes_of

QUANTS = {"q8_0": 32, "q4_0": 16}  # bytes of the quants of a llama.cpp block, after its scale
KV_TYPES = ("f16", "f32", *QUANTS)


@dataclass(frozen=True, slots=True)
class Paged:
    """Keys and values of some sequences, and the batch arrays of their newest tokens."""

    keys: list[np.ndarray]  # of each sequence, [context, kv_heads, head_dim] float64, as cached
    values: list[np.ndarray]
    k: np.ndarray  # of the newest tokens, [T, kv_heads, head_dim] float32, before they are cached
    v: np.ndarray
    k_cache: np.ndarray
    v_cache: np.ndarray
    positions: np.ndarray
    seq_of: np.ndarray
    block_tables: np.ndarray

    @property
    def where(self) -> dict[str, np.ndarray]:
        return {name: getattr(self, name) for name in ("positions", "seq_of", "block_tables")}


def llamacpp_blocks(x: np.ndarray, variant: str) -> np.ndarray:
    """x f32[..., head_dim] as llama.cpp's blocks, u8[..., groups, bytes], by gguf-py."""
    kind = gguf.GGMLQuantizationType[variant.upper()]
    blocks = gguf.quantize(x.reshape(-1, 32), kind)
    return blocks.reshape(*x.shape[:-1], -1, QUANTS[variant] + 2)


def as_cached(x: np.ndarray, variant: str) -> np.ndarray:
    """What a cache of that type makes of x f32[..., head_dim], float64."""
    if variant in QUANTS:
        kind = gguf.GGMLQuantizationType[variant.upper()]
        blocks = llamacpp_blocks(x, variant)
        return gguf.dequantize(blocks, kind).reshape(x.shape).astype(np.float64)
    return x.astype(np.float16 if variant == "f16" else np.float32).astype(np.float64)


def place(k_block: np.ndarray, v_block: np.ndarray, at: int, k: np.ndarray, v: np.ndarray) -> None:
    """Put llama.cpp's blocks of k and v, u8[kv_heads, groups, bytes], at token `at` of a block of a
    quantised cache, u8[kv_heads, lines, tokens]: scale by scale, piece by piece."""
    heads, groups, size = k.shape
    n, tokens = size - 2, k_block.shape[2]
    for cache, new, stride, step in ((k_block, k, 4 * tokens, 4), (v_block, v, 4, n)):
        flat = cache.reshape(heads, groups, size * tokens)
        scales = n * tokens + 2 * at
        flat[:, :, scales : scales + 2] = new[:, :, :2]
        for piece in range(n // 4):
            first = at * step + piece * stride
            flat[:, :, first : first + 4] = new[:, :, 2 + 4 * piece : 6 + 4 * piece]


def paged(
    pieces: list[tuple[int, int]],
    kv_heads: int,
    head_dim: int,
    variant: str,
    block_tokens: int = 64,
    seed: int = 0,
) -> Paged:
    """`pieces` are (position of the first new token, how many new tokens). The cache holds every
    sequence up to its last new token, and NaN everywhere else."""
    rng = np.random.default_rng(seed)
    lengths = [first + n for first, n in pieces]
    widths = [-(-length // block_tokens) for length in lengths]
    n_blocks = sum(widths) + 2
    order = rng.permutation(n_blocks)
    tables = np.zeros((len(pieces), max(widths) + 1), np.int32)
    dtype = {"f16": np.float16, "f32": np.float32}.get(variant, np.uint8)
    nothing = 255 if variant in QUANTS else np.nan  # two bytes of 255 are a scale that is NaN
    shapes = shapes_of(variant, head_dim, block_tokens)
    k_cache, v_cache = (np.full((n_blocks, kv_heads, *shape), nothing, dtype) for shape in shapes)
    keys, values, new_k, new_v, used = [], [], [], [], 0
    for s, (length, width) in enumerate(zip(lengths, widths, strict=True)):
        tables[s, :width] = order[used : used + width]
        used += width
        k, v = rng.standard_normal((2, length, kv_heads, head_dim)).astype(np.float32)
        if variant in QUANTS:
            k_blocks, v_blocks = llamacpp_blocks(k, variant), llamacpp_blocks(v, variant)
        for j in range(length):
            block, at = tables[s, j // block_tokens], j % block_tokens
            if variant in QUANTS:
                place(k_cache[block], v_cache[block], at, k_blocks[j], v_blocks[j])
            else:
                k_cache[block, :, :, at], v_cache[block, :, at, :] = k[j], v[j]
        new_k.append(k[pieces[s][0] :])
        new_v.append(v[pieces[s][0] :])
        keys.append(as_cached(k, variant))
        values.append(as_cached(v, variant))
    if variant == "f16":
        k_cache, v_cache = k_cache.view(np.uint16), v_cache.view(np.uint16)
    return Paged(
        keys,
        values,
        np.concatenate(new_k),
        np.concatenate(new_v),
        k_cache,
        v_cache,
        np.concatenate([np.arange(first, first + n, dtype=np.int32) for first, n in pieces]),
        np.repeat(np.arange(len(pieces), dtype=np.int32), [n for _, n in pieces]),
        tables,
    )
