"""Attention of a few tokens over long contexts, in chunks of tokens that threads share: sums over
each chunk, then the sum of those.

A chunk has a fixed number of tokens, counted from the start of the sequence, and chunks are taken
together in order, so the result depends on positions alone. `attention` does the same where there
are tokens or heads enough to share.
"""

from __future__ import annotations

import math

import numpy as np

from llama3jit.ops.kv_arrays import taken
from llama3jit.ops.kv_dtypes import KV_DTYPES
from llama3jit.ops.op import op

CHUNK = 512  # tokens
FEW = 16  # tokens of a batch up to which it pays to split
NOTHING = np.float32(-1e30)  # below all scores: the largest of a chunk in which a row sees nothing


@op(variants=KV_DTYPES, outputs=2)
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
    read_key: function,
    read_value: function,
    items: T * heads * chunks,
):
    """Of every chunk the largest score and the sum of exp(score - largest), in `weights`, and the
    sum of the values times that, in `sums`; see `attention`."""
    heads = q.shape[1]
    chunks = sums.shape[2]
    group = heads // k_cache.shape[1]
    block_tokens = k_cache.shape[3]
    for item in items:
        c = item % chunks
        h = item // chunks % heads
        t = item // chunks // heads
        g = h // group
        last = min(positions[t], (c + 1) * CHUNK - 1)
        first = max(0, positions[t] - window + 1) if window > 0 else 0
        largest = NOTHING
        total = np.float32(0.0)
        for d in range(q.shape[2]):
            sums[t, h, c, d] = np.float32(0.0)
        for j in range(max(first, c * CHUNK), last + 1):
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
                    sums[t, h, c, d] *= shrink
                largest = score
            weight = np.float32(math.exp(score - largest))
            total += weight
            for d in range(q.shape[2]):
                sums[t, h, c, d] += weight * read_value(v_cache, block, g, at, d)
        weights[t, h, c, 0] = largest
        weights[t, h, c, 1] = total


@attention_chunks.reference
def attention_chunks_reference(
    sums, weights, q, k_cache, v_cache, positions, seq_of, block_tables, scale, window, variant
):
    block_tokens = k_cache.shape[3]
    group = q.shape[1] // k_cache.shape[1]
    for t, last in enumerate(positions):
        blocks = block_tables[seq_of[t], : last // block_tokens + 1]
        k_all, v_all = taken(k_cache, v_cache, blocks, variant)
        for c in range(sums.shape[2]):
            first = max(c * CHUNK, last - window + 1 if window else 0)
            tokens = np.arange(first, min(last + 1, (c + 1) * CHUNK))
            if tokens.size == 0:
                sums[t, :, c], weights[t, :, c, 0], weights[t, :, c, 1] = 0, NOTHING, 0
                continue
            k = np.repeat(k_all[tokens], group, axis=1)
            v = np.repeat(v_all[tokens], group, axis=1)
            scores = np.einsum("hd,jhd->hj", q[t].astype(np.float64), k) * scale
            largest = scores.max(axis=1)
            shares = np.exp(scores - largest[:, None])
            weights[t, :, c, 0], weights[t, :, c, 1] = largest, shares.sum(axis=1)
            sums[t, :, c] = np.einsum("hj,jhd->hd", shares, v)


@op
def attention_merge(
    out: f32[T, heads, head_dim],
    sums: f32[few, heads, chunks, head_dim],
    weights: f32[few, heads, chunks, 2],
    items: T * heads,
):
    """out = sum over c of sums[c] exp(largest[c]) / sum over c of total[c] exp(largest[c]), with
    the largest of all taken off the exponents."""
    heads = out.shape[1]
    chunks = sums.shape[2]
    for item in items:
        t = item // heads
        h = item % heads
        largest = NOTHING
        for c in range(chunks):
            largest = max(largest, weights[t, h, c, 0])
        total = np.float32(0.0)
        for d in range(out.shape[2]):
            out[t, h, d] = np.float32(0.0)
        for c in range(chunks):
            share = np.float32(math.exp(weights[t, h, c, 0] - largest))
            total += share * weights[t, h, c, 1]
            for d in range(out.shape[2]):
                out[t, h, d] += share * sums[t, h, c, d]
        for d in range(out.shape[2]):
            out[t, h, d] /= total


@attention_merge.reference
def attention_merge_reference(out, sums, weights):
    n = len(out)
    largest, totals = weights[:n, :, :, 0].astype(np.float64), weights[:n, :, :, 1]
    shares = np.exp(largest - largest.max(axis=2, keepdims=True))
    total = (shares * totals).sum(axis=2)
    out[:] = np.einsum("thc,thcd->thd", shares, sums[:n]) / total[:, :, None]
