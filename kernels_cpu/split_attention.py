"""Attention of a few tokens over long contexts, its chunks shared by the threads."""

from __future__ import annotations

import numpy as np

from kernels_cpu.attention import TILE_FLOATS, attend, divide, set_rows, take_in
from kernels_cpu.kv_blocks import KV
from kernels_cpu.kv_plain import LANES, ROWS
from kernels_cpu.simd import load_f32, splat_f32, store_f32
from kernels_cpu.stack import stack_f32, stack_i64
from llama3jit.ops.op import AS_WRITTEN, op
from llama3jit.ops.split_attention import NOTHING


@op(variants=KV, fastmath=AS_WRITTEN, outputs=2)
def attention_chunks(
    sums: f32[few, heads, chunks, head_dim],
    weights: f32[few, heads, chunks, 2],
    q: f32[T, heads, head_dim],
    k_cache: kv[n_blocks, kv_heads, k_lines, block_tokens],
    v_cache: kv[n_blocks, kv_heads, v_lines, v_line],
    positions: i32[T],
    seq_of: i32[T],
    block_tables: i32[S, B],
    scale: f32,
    window: i64,
    items: chunks * kv_heads * ((T * (heads // kv_heads) + 3) // 4),
):
    """As llama3jit.ops.split_attention.attention_chunks; an item is four rows of a KV head in one
    chunk."""
    head_dim = q.shape[2]
    heads = q.shape[1]
    kv_heads = v_cache.shape[1]
    chunks = sums.shape[2]
    group = heads // kv_heads
    rows = q.shape[0] * group
    queries = stack_f32(TILE_FLOATS)
    tile = stack_f32(TILE_FLOATS)
    largest = stack_f32(ROWS)
    totals = stack_f32(ROWS)
    firsts = stack_i64(ROWS)
    lasts = stack_i64(ROWS)
    for item in items:
        c = item % chunks
        g = item // chunks % kv_heads
        row = item // chunks // kv_heads * ROWS
        end = min(row + ROWS, rows)
        while row < end:
            n = set_rows(
                queries, firsts, lasts, q, positions, seq_of, scale, window, g, group, row, end
            )
            sequence = seq_of[row // group]
            attend(
                tile, largest, totals, queries, firsts, lasts,
                k_cache, v_cache, block_tables, sequence, g, c, head_dim,
            )  # fmt: skip
            for r in range(n):
                t = (row + r) // group
                h = g * group + (row + r) % group
                at = ((t * heads + h) * chunks + c) * head_dim
                for column in range(0, head_dim, LANES):
                    store_f32(sums, at + column, load_f32(tile, r * head_dim + column))
                weights[t, h, c, 0] = largest[r]
                weights[t, h, c, 1] = totals[r]
            row += n


@op(fastmath=AS_WRITTEN)
def attention_merge(
    out: f32[T, heads, head_dim],
    sums: f32[few, heads, chunks, head_dim],
    weights: f32[few, heads, chunks, 2],
    items: T * heads,
):
    """As llama3jit.ops.split_attention.attention_merge."""
    heads = out.shape[1]
    head_dim = out.shape[2]
    chunks = sums.shape[2]
    whole = stack_f32(TILE_FLOATS)
    zero = splat_f32(np.float32(0.0))
    for item in items:
        t = item // heads
        h = item % heads
        largest = NOTHING
        total = np.float32(0.0)
        for column in range(0, head_dim, LANES):
            store_f32(whole, column, zero)
        for c in range(chunks):
            largest, total = take_in(
                whole, 0, largest, total,
                sums, (item * chunks + c) * head_dim, weights[t, h, c, 0], weights[t, h, c, 1],
                head_dim,
            )  # fmt: skip
        divide(out, item * head_dim, whole, 0, total, head_dim)
