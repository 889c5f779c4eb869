"""Sequences in a paged cache whose blocks lie in any order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Paged:
    """Keys and values of some sequences, and the batch arrays of their newest tokens."""

    keys: list[np.ndarray]  # of each sequence, [context, kv_heads, head_dim] float64, as cached
    values: list[np.ndarray]
    k_cache: np.ndarray
    v_cache: np.ndarray
    positions: np.ndarray
    seq_of: np.ndarray
    block_tables: np.ndarray

    @property
    def where(self) -> dict[str, np.ndarray]:
        return {name: getattr(self, name) for name in ("positions", "seq_of", "block_tables")}


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
    dtype = np.float16 if variant == "f16" else np.float32
    k_cache = np.full((n_blocks, kv_heads, head_dim, block_tokens), np.nan, dtype)
    v_cache = np.full((n_blocks, kv_heads, block_tokens, head_dim), np.nan, dtype)
    keys, values, used = [], [], 0
    for s, (length, width) in enumerate(zip(lengths, widths, strict=True)):
        tables[s, :width] = order[used : used + width]
        used += width
        k, v = rng.standard_normal((2, length, kv_heads, head_dim)).astype(dtype)
        for j in range(length):
            block, at = tables[s, j // block_tokens], j % block_tokens
            k_cache[block, :, :, at], v_cache[block, :, at, :] = k[j], v[j]
        keys.append(k.astype(np.float64))
        values.append(v.astype(np.float64))
    if variant == "f16":
        k_cache, v_cache = k_cache.view(np.uint16), v_cache.view(np.uint16)
    return Paged(
        keys,
        values,
        k_cache,
        v_cache,
        np.concatenate([np.arange(first, first + n, dtype=np.int32) for first, n in pieces]),
        np.repeat(np.arange(len(pieces), dtype=np.int32), [n for _, n in pieces]),
        tables,
    )
