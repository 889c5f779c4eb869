"""Attention over the paged cache, four rows (a query head of a token) at a time against a block of
64 tokens.

A row's sums go block by block, inside a block in a fixed order, and chunk by chunk, so its bits do
not depend on which rows share its tile or on whether threads share its chunks (see
kernels_cpu.split_attention). Blocks outside a row's own range change nothing: their weights are 0.
"""

from __future__ import annotations

import numpy as np

from kernels_cpu.exp import exp
from kernels_cpu.kv_blocks import KV
from kernels_cpu.kv_plain import BLOCK_TOKENS, LANES, ROWS
from kernels_cpu.simd import (
    add,
    fma,
    keep_between,
    largest_of,
    load_f32,
    maximum,
    mul,
    splat_f32,
    store_f32,
    sub,
    sum_of,
)
from kernels_cpu.stack import stack_f32, stack_i64
from kernels_cpu.vectors import f32_registers
from llama3jit.ops.op import AS_WRITTEN, op
from llama3jit.ops.split_attention import CHUNK, NOTHING

TILE_FLOATS = 1024  # ROWS * 256 components
TILE_SCORES = 256  # ROWS * BLOCK_TOKENS


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


def clear(sums, largest, totals, head_dim):
    """Nothing seen yet, for all rows of a tile."""
    zero = splat_f32(np.float32(0.0))
    for r in range(ROWS):
        largest[r] = NOTHING
        totals[r] = np.float32(0.0)
        for column in range(0, head_dim, LANES):
            store_f32(sums, r * head_dim + column, zero)


def attend(
    sums, largest, totals, queries, firsts, lasts, k_cache, v_cache, block_tables, sequence, g, c,
    head_dim,
):  # fmt: skip
    """What rows of one sequence see in chunk c: the largest score, the total of the weights and the
    weighted sum of the values of each. Row r sees tokens firsts[r] to lasts[r]."""
    kv_heads = k_cache.shape[1]
    block_size = k_cache.shape[2] * k_cache.shape[3]
    scores = stack_f32(TILE_SCORES)
    shrinks = stack_f32(ROWS)
    seen = stack_i64(2)
    clear(sums, largest, totals, head_dim)
    first = (c + 1) * CHUNK
    last = -1
    for r in range(ROWS):
        if lasts[r] >= firsts[r]:
            first = min(first, max(firsts[r], c * CHUNK))
            last = max(last, min(lasts[r], (c + 1) * CHUNK - 1))
    for b in range(first // BLOCK_TOKENS, last // BLOCK_TOKENS + 1):
        base = (block_tables[sequence, b] * kv_heads + g) * block_size
        scores_of(scores, queries, k_cache, v_cache, base, head_dim)
        start = b * BLOCK_TOKENS
        n = min(BLOCK_TOKENS, last + 1 - start)
        seen[0] = 0
        seen[1] = n
        for r in range(ROWS):
            shrinks[r] = soften(scores, r, firsts[r] - start, lasts[r] + 1 - start, largest, totals)
            if lasts[r] >= firsts[r]:
                seen[0] = max(seen[0], firsts[r] - start)
                seen[1] = min(seen[1], lasts[r] + 1 - start)
        following = base
        if b < last // BLOCK_TOKENS:
            following = (block_tables[sequence, b + 1] * kv_heads + g) * block_size
        mix(sums, shrinks, scores, v_cache, k_cache, base, following, head_dim, n, seen)


def take_in(whole, whole_at, largest, total, part, part_at, part_largest, part_total, head_dim):
    """Add a chunk's sums to the whole's; the new (largest, total). A chunk without weight changes
    no bit."""
    if part_total == np.float32(0.0):
        return largest, total
    top = max(largest, part_largest)
    keep = exp_of(largest - top)
    share = exp_of(part_largest - top)
    for column in range(0, head_dim, LANES):
        old = mul(load_f32(whole, whole_at + column), splat_f32(keep))
        new = fma(load_f32(part, part_at + column), splat_f32(share), old)
        store_f32(whole, whole_at + column, new)
    return top, total * keep + part_total * share


def divide(out, out_at, sums, at, total, head_dim):
    """Store a row's sums divided by the total of its weights."""
    share = splat_f32(np.float32(1.0) / total)
    for column in range(0, head_dim, LANES):
        store_f32(out, out_at + column, mul(load_f32(sums, at + column), share))


def set_rows(queries, firsts, lasts, q, positions, seq_of, scale, window, g, group, row, end):
    """Fill a tile with as many rows from `row` on as belong to one sequence; the others see no
    token. How many that are."""
    head_dim = q.shape[2]
    sequence = seq_of[row // group]
    n = 0
    for r in range(ROWS):
        firsts[r] = 0
        lasts[r] = -1
        t = min(row + r, end - 1) // group
        h = g * group + (row + r) % group
        mine = row + r < end and seq_of[t] == sequence and n == r
        if mine:
            n += 1
            lasts[r] = positions[t]
            if window > 0:
                firsts[r] = max(0, positions[t] - window + 1)
        for d in range(head_dim):
            queries[r * head_dim + d] = q[t, h, d] * scale if mine else np.float32(0.0)
    return n


@op(variants=KV, fastmath=AS_WRITTEN)
def attention(
    out: f32[T, heads, head_dim],
    q: f32[T, heads, head_dim],
    k_cache: kv[n_blocks, kv_heads, k_lines, block_tokens],
    v_cache: kv[n_blocks, kv_heads, v_lines, v_line],
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
    heads = q.shape[1]
    kv_heads = v_cache.shape[1]
    group = heads // kv_heads
    rows = q.shape[0] * group
    queries = stack_f32(TILE_FLOATS)
    whole = stack_f32(TILE_FLOATS)
    whole_largest = stack_f32(ROWS)
    whole_totals = stack_f32(ROWS)
    sums = stack_f32(TILE_FLOATS)
    largest = stack_f32(ROWS)
    totals = stack_f32(ROWS)
    firsts = stack_i64(ROWS)
    lasts = stack_i64(ROWS)
    for item in items:
        g = item % kv_heads
        row = item // kv_heads * ROWS
        end = min(row + ROWS, rows)
        while row < end:
            n = set_rows(
                queries, firsts, lasts, q, positions, seq_of, scale, window, g, group, row, end
            )
            clear(whole, whole_largest, whole_totals, head_dim)
            sequence = seq_of[row // group]
            # Positions rise along the rows of a sequence, so the ends are the first's and last's.
            for c in range(firsts[0] // CHUNK, lasts[n - 1] // CHUNK + 1):
                attend(
                    sums, largest, totals, queries, firsts, lasts,
                    k_cache, v_cache, block_tables, sequence, g, c, head_dim,
                )  # fmt: skip
                for r in range(n):
                    at = r * head_dim
                    whole_largest[r], whole_totals[r] = take_in(
                        whole, at, whole_largest[r], whole_totals[r],
                        sums, at, largest[r], totals[r], head_dim,
                    )  # fmt: skip
            for r in range(n):
                t = (row + r) // group
                h = g * group + (row + r) % group
                divide(
                    out, (t * heads + h) * head_dim, whole, r * head_dim, whole_totals[r], head_dim
                )
            row += n
