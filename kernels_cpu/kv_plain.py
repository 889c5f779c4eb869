"""A tile of attention against a block of an f16 or f32 cache."""

from __future__ import annotations

import numpy as np

from kernels_cpu.simd import (
    fma,
    load_f32,
    mul,
    prefetch,
    splat_f32,
    spread_f32,
    store_f32,
)
from kernels_cpu.vectors import f32_registers
from llama3jit.ops.faces import specialise

LANES = 16
BLOCK_TOKENS = 64
ROWS = 4  # rows of a tile
VECTORS = 4  # vectors of 16 components that a pass over the values keeps in registers
SUMS = 16  # ROWS * 4 vectors of tokens, or of components


def scores_of(scores, queries, k_cache, v_cache, base, head_dim):
    """scores[r, j] = queries[r] . key j, for the 64 keys of the block at `base`; asks for the
    values of the same block meanwhile."""
    sums = f32_registers(SUMS)
    for i in range(SUMS):
        sums[i] = splat_f32(np.float32(0.0))
    for d in range(head_dim):
        for line in range(BLOCK_TOKENS // LINE):
            prefetch(v_cache, base + d * BLOCK_TOKENS + line * LINE)
        for j in range(4):
            key = load_kv(k_cache, base + d * BLOCK_TOKENS + j * LANES)
            for r in range(ROWS):
                sums[4 * r + j] = fma(key, spread_f32(queries, r * head_dim + d), sums[4 * r + j])
    for i in range(SUMS):
        store_f32(scores, i * LANES, sums[i])


def add_where_seen(sums, scores, v_cache, at, j):
    """Add the value at `at`, token j of a block, to the rows that give it weight."""
    for r in range(ROWS):
        if scores[r * BLOCK_TOKENS + j] != np.float32(0.0):
            weight = spread_f32(scores, r * BLOCK_TOKENS + j)
            for c in range(VECTORS):
                value = load_kv(v_cache, at + c * LANES)
                sums[r * VECTORS + c] = fma(value, weight, sums[r * VECTORS + c])


def mix_columns(
    sums_of_rows, shrinks, scores, v_cache, k_cache, base, following, head_dim, n, seen, column
):
    """sums[r] = sums[r] * shrink[r] + sum of weight[r, j] * value j over the n first tokens of the
    block, for VECTORS * 16 components from `column` on; asks for the keys of the block at
    `following` meanwhile. All rows see the tokens seen[0] to seen[1] - 1; a value that a row does
    not see is not even multiplied by 0, since it may be infinite."""
    sums = f32_registers(SUMS)
    for r in range(ROWS):
        shrink = spread_f32(shrinks, r)
        for c in range(VECTORS):
            old = load_f32(sums_of_rows, r * head_dim + column + c * LANES)
            sums[r * VECTORS + c] = mul(old, shrink)
    for j in range(min(seen[0], n)):
        add_where_seen(sums, scores, v_cache, base + j * head_dim + column, j)
    for j in range(seen[0], seen[1]):
        for line in range(VECTORS * LANES // LINE):
            prefetch(k_cache, following + j * head_dim + column + line * LINE)
        for c in range(VECTORS):
            value = load_kv(v_cache, base + j * head_dim + column + c * LANES)
            for r in range(ROWS):
                weight = spread_f32(scores, r * BLOCK_TOKENS + j)
                sums[r * VECTORS + c] = fma(value, weight, sums[r * VECTORS + c])
    for j in range(max(seen[0], seen[1]), n):
        add_where_seen(sums, scores, v_cache, base + j * head_dim + column, j)
    for r in range(ROWS):
        for c in range(VECTORS):
            store_f32(sums_of_rows, r * head_dim + column + c * LANES, sums[r * VECTORS + c])


mix_16_columns = specialise(mix_columns, VECTORS=1, SUMS=4)


def mix(sums, shrinks, scores, v_cache, k_cache, base, following, head_dim, n, seen):
    """mix_columns of all components."""
    column = 0
    while column + VECTORS * LANES <= head_dim:
        mix_columns(
            sums, shrinks, scores, v_cache, k_cache, base, following, head_dim, n, seen, column
        )
        column += VECTORS * LANES
    while column < head_dim:
        mix_16_columns(
            sums, shrinks, scores, v_cache, k_cache, base, following, head_dim, n, seen, column
        )
        column += LANES
