"""Causal attention with grouped queries over the paged cache."""

from __future__ import annotations

import math

import numpy as np

from llama3jit.ops.kv_arrays import taken
from llama3jit.ops.kv_dtypes import KV_DTYPES
from llama3jit.ops.op import op


@op(variants=KV_DTYPES)
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
    read_key: function,
    read_value: function,
    items: T * heads,
):
    """out[t, h] = softmax(q[t, h] . k[j, g] * scale) . v[j, g] over the tokens j of the sequence
    with positions[t] - window < j <= positions[t]; window 0 is no limit; g is the KV head that
    heads / kv_heads query heads share. Where seq_of[t] is below 0, out[t] stays as it is.

    Softmax in one pass: the sums are rescaled when a larger score turns up (Milakov and
    Gimelshein 2018, arXiv:1805.02867).
    """
    heads = q.shape[1]
    group = heads // k_cache.shape[1]
    block_tokens = k_cache.shape[3]
    for item in items:
        t = item // heads
        h = item % heads
        if seq_of[t] < 0:
            continue
        g = h // group
        last = positions[t]
        first = max(0, last - window + 1) if window > 0 else 0
        largest = np.float32(-np.inf)
        total = np.float32(0.0)
        for d in range(q.shape[2]):
            out[t, h, d] = np.float32(0.0)
        for j in range(first, last + 1):
            block = block_tables[seq_of[t], j // block_tokens]
            at = j % block_tokens
            score = np.float32(0.0)
            for d in range(q.shape[2]):
                score += q[t, h, d] * read_key(k_cache, block, g, at, d)
            score *= scale
            if score > largest:
                shrink = np.float32(math.exp(largest - score))
                total *= shrink
                for d in range(q.shape[2]):
                    out[t, h, d] *= shrink
                largest = score
            weight = np.float32(math.exp(score - largest))
            total += weight
            for d in range(q.shape[2]):
                out[t, h, d] += weight * read_value(v_cache, block, g, at, d)
        for d in range(q.shape[2]):
            out[t, h, d] /= total


@attention.reference
def attention_reference(
    out, q, k_cache, v_cache, positions, seq_of, block_tables, scale, window, variant
):
    block_tokens = k_cache.shape[3]
    group = q.shape[1] // k_cache.shape[1]
    for s in np.unique(seq_of[seq_of >= 0]):
        rows = np.flatnonzero(seq_of == s)
        blocks = block_tables[s, : positions[rows].max() // block_tokens + 1]
        k, v = taken(k_cache, v_cache, blocks, variant)
        k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
        for t in rows:
            seen = slice(max(0, positions[t] - window + 1) if window else 0, positions[t] + 1)
            scores = np.einsum("hd,jhd->hj", q[t].astype(np.float64), k[seen]) * scale
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            out[t] = np.einsum("hj,jhd->hd", weights / weights.sum(axis=1, keepdims=True), v[seen])
