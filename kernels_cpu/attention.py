"""Attention over the paged cache, four rows (a query head of a token) at a time against a block of
64 tokens.

A row's sums go block by block, and inside a block in a fixed order, so its bits do not depend on
which rows share its tile. Blocks outside a row's own range change nothing: their weights are 0.
"""

from __future__ import annotations

import numpy as np

from kernels_cpu.exp import exp
from kernels_cpu.simd import (
    add,
    fma,
    keep_between,
    largest_of,
    load_f32,
    load_half,
    maximum,
    mul,
    prefetch,
    splat_f32,
    spread_f32,
    store_f32,
    sub,
    sum_of,
)
from kernels_cpu.stack import stack_f32, stack_i64
from kernels_cpu.vectors import f32_registers
from llama3jit.ops.faces import specialise
from llama3jit.ops.op import AS_WRITTEN, op

LANES = 16
BLOCK_TOKENS = 64
ROWS = 4  # rows of a tile
VECTORS = 4  # vectors of 16 components that a pass over the values keeps in registers
SUMS = 16  # ROWS * 4 vectors of tokens, or of components
TILE_FLOATS = 1024  # ROWS * 256 components
TILE_SCORES = 256  # ROWS * BLOCK_TOKENS
NOTHING = np.float32(-1e30)  # a score below all scores

# LINE is how many elements of a cache lie in one cache line.
KV = {
    "f16": {"kv": "u16", "load_kv": load_half, "LINE": 32},
    "f32": {"kv": "f32", "load_kv": load_f32, "LINE": 16},
}


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


def soften(scores, r, first, end, largest, totals):
    """Scores of row r to weights, those outside first:end to 0; the factor by which what the row
    has summed so far shrinks."""
    nothing = splat_f32(NOTHING)
    values = f32_registers(4)
    top = nothing
    for j in range(4):
        score = load_f32(scores, r * BLOCK_TOKENS + j * LANES)
        values[j] = keep_between(score, first - j * LANES, end - j * LANES, nothing)
        top = maximum(values[j], top)
    top_score = max(largest[r], largest_of(top))
    shrink = exp_of(largest[r] - top_score)
    zero = splat_f32(np.float32(0.0))
    total = zero
    for j in range(4):
        weight = exp(sub(values[j], splat_f32(top_score)))
        weight = keep_between(weight, first - j * LANES, end - j * LANES, zero)
        store_f32(scores, r * BLOCK_TOKENS + j * LANES, weight)
        total = add(total, weight)
    largest[r] = top_score
    totals[r] = totals[r] * shrink + sum_of(total)
    return shrink


def exp_of(x):
    """exp of one number, with the bits that a vector of it would have."""
    return largest_of(exp(splat_f32(x)))


def mix(sums_of_rows, shrinks, scores, v_cache, k_cache, base, following, head_dim, n, column):
    """sums[r] = sums[r] * shrink[r] + sum of weight[r, j] * value j over the n first tokens of the
    block, for VECTORS * 16 components from `column` on; asks for the keys of the block at
    `following` meanwhile."""
    sums = f32_registers(SUMS)
    for r in range(ROWS):
        shrink = spread_f32(shrinks, r)
        for c in range(VECTORS):
            old = load_f32(sums_of_rows, r * head_dim + column + c * LANES)
            sums[r * VECTORS + c] = mul(old, shrink)
    for j in range(n):
        for line in range(VECTORS * LANES // LINE):
            prefetch(k_cache, following + j * head_dim + column + line * LINE)
        for c in range(VECTORS):
            value = load_kv(v_cache, base + j * head_dim + column + c * LANES)
            for r in range(ROWS):
                weight = spread_f32(scores, r * BLOCK_TOKENS + j)
                sums[r * VECTORS + c] = fma(value, weight, sums[r * VECTORS + c])
    for r in range(ROWS):
        for c in range(VECTORS):
            store_f32(sums_of_rows, r * head_dim + column + c * LANES, sums[r * VECTORS + c])


mix_1 = specialise(mix, VECTORS=1, SUMS=4)


def attend(sums, queries, firsts, lasts, k_cache, v_cache, block_tables, sequence, g, head_dim):
    """Weighted sums of values, divided by the sums of weights, for rows of one sequence. Row r sees
    tokens firsts[r] to lasts[r]; none if lasts[r] < firsts[r]."""
    scores = stack_f32(TILE_SCORES)
    shrinks = stack_f32(ROWS)
    largest = stack_f32(ROWS)
    totals = stack_f32(ROWS)
    first = firsts[0]
    last = lasts[0]
    for r in range(ROWS):
        largest[r] = NOTHING
        totals[r] = np.float32(0.0)
        if lasts[r] >= firsts[r]:
            first = min(first, firsts[r])
            last = max(last, lasts[r])
    kv_heads = v_cache.shape[1]
    for b in range(first // BLOCK_TOKENS, last // BLOCK_TOKENS + 1):
        base = (block_tables[sequence, b] * kv_heads + g) * BLOCK_TOKENS * head_dim
        scores_of(scores, queries, k_cache, v_cache, base, head_dim)
        start = b * BLOCK_TOKENS
        for r in range(ROWS):
            shrinks[r] = soften(scores, r, firsts[r] - start, lasts[r] + 1 - start, largest, totals)
        n = min(BLOCK_TOKENS, last + 1 - start)
        following = base
        if b < last // BLOCK_TOKENS:
            following = (block_tables[sequence, b + 1] * kv_heads + g) * BLOCK_TOKENS * head_dim
        column = 0
        while column + VECTORS * LANES <= head_dim:
            mix(sums, shrinks, scores, v_cache, k_cache, base, following, head_dim, n, column)
            column += VECTORS * LANES
        while column < head_dim:
            mix_1(sums, shrinks, scores, v_cache, k_cache, base, following, head_dim, n, column)
            column += LANES
    for r in range(ROWS):
        if lasts[r] >= firsts[r]:
            share = splat_f32(np.float32(1.0) / totals[r])
            for column in range(0, head_dim, LANES):
                at = r * head_dim + column
                store_f32(sums, at, mul(load_f32(sums, at), share))


@op(variants=KV, fastmath=AS_WRITTEN)
def attention(
    out: f32[T, heads, head_dim],
    q: f32[T, heads, head_dim],
    k_cache: kv[n_blocks, kv_heads, head_dim, block_tokens],
    v_cache: kv[n_blocks, kv_heads, block_tokens, head_dim],
    positions: i32[T],
    seq_of: i32[T],
    block_tables: i32[S, B],
    scale: f32,
    window: i64,
    items: kv_heads * ((T * (heads // kv_heads) + 3) // 4),
):
    """As llama3jit.ops.attention.attention; head_dim is a multiple of 16 and at most 256.

    The rows of a KV head are the query heads that share it, token after token; an item is four.
    """
    head_dim = q.shape[2]
    kv_heads = v_cache.shape[1]
    group = q.shape[1] // kv_heads
    rows = q.shape[0] * group
    queries = stack_f32(TILE_FLOATS)
    sums = stack_f32(TILE_FLOATS)
    firsts = stack_i64(ROWS)
    lasts = stack_i64(ROWS)
    for item in items:
        g = item % kv_heads
        row = item // kv_heads * ROWS
        end = min(row + ROWS, rows)
        while row < end:
            # As many rows as belong to one sequence; the others of the tile see no token.
            sequence = seq_of[row // group]
            n = 0
            for r in range(ROWS):
                firsts[r] = 0
                lasts[r] = -1
                t = min(row + r, rows - 1) // group
                mine = row + r < end and seq_of[t] == sequence and n == r
                if mine:
                    n += 1
                    lasts[r] = positions[t]
                    if window > 0:
                        firsts[r] = max(0, positions[t] - window + 1)
                h = g * group + (row + r) % group
                for d in range(head_dim):
                    queries[r * head_dim + d] = q[t, h, d] * scale if mine else np.float32(0.0)
                    sums[r * head_dim + d] = np.float32(0.0)
            attend(
                sums, queries, firsts, lasts, k_cache, v_cache, block_tables, sequence, g, head_dim
            )
            for r in range(n):
                t = (row + r) // group
                h = g * group + (row + r) % group
                for d in range(head_dim):
                    out[t, h, d] = sums[r * head_dim + d]
            row += n
