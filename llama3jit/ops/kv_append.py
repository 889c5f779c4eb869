"""Keys and values into the paged cache.

A block holds `block_tokens` tokens of one KV head. Values lie token by token; keys lie with the
token running fastest, so that one vector register holds the same component of 16 tokens and a
score needs no horizontal sum.
"""

from __future__ import annotations

import numpy as np

from llama3jit.ops.bits import KV_DTYPES
from llama3jit.ops.op import op


@op(variants=KV_DTYPES, outputs=2)
def kv_append(
    k_cache: kv[n_blocks, heads, head_dim, block_tokens],
    v_cache: kv[n_blocks, heads, block_tokens, head_dim],
    k: f32[T, heads, head_dim],
    v: f32[T, heads, head_dim],
    positions: i32[T],
    seq_of: i32[T],
    block_tables: i32[S, B],
    write: function,
    items: T,
):
    """Write k[t], v[t] at positions[t] of sequence seq_of[t], if that is not below 0."""
    block_tokens = v_cache.shape[2]
    for t in items:
        if seq_of[t] < 0:
            continue
        block = block_tables[seq_of[t], positions[t] // block_tokens]
        at = positions[t] % block_tokens
        for h in range(k.shape[1]):
            for d in range(k.shape[2]):
                k_cache[block, h, d, at] = write(k[t, h, d])
                v_cache[block, h, at, d] = write(v[t, h, d])


def to_cache(x, cache):
    """float array x in the dtype that a cache array has; f16 is kept as its bits."""
    if cache.dtype == np.uint16:
        with np.errstate(over="ignore"):
            return x.astype(np.float16).view(np.uint16)
    return x.astype(cache.dtype)


def from_cache(cache):
    """A cache array as float64."""
    return (cache.view(np.float16) if cache.dtype == np.uint16 else cache).astype(np.float64)


@kv_append.reference
def kv_append_reference(k_cache, v_cache, k, v, positions, seq_of, block_tables, variant):
    block_tokens = v_cache.shape[2]
    there = seq_of >= 0
    k, v, positions, seq_of = k[there], v[there], positions[there], seq_of[there]
    blocks = block_tables[seq_of, positions // block_tokens]
    k_cache[blocks, :, :, positions % block_tokens] = to_cache(k, k_cache)
    v_cache[blocks, :, positions % block_tokens, :] = to_cache(v, v_cache)
