"""Keys and values into the paged cache."""

from __future__ import annotations

from llama3jit.ops.kv_arrays import put
from llama3jit.ops.kv_dtypes import KV_DTYPES
from llama3jit.ops.op import AS_WRITTEN, op


@op(variants=KV_DTYPES, fastmath=AS_WRITTEN, outputs=2)
def kv_append(
    k_cache: kv[n_blocks, heads, k_lines, block_tokens],
    v_cache: kv[n_blocks, heads, v_lines, v_line],
    k: f32[T, heads, head_dim],
    v: f32[T, heads, head_dim],
    positions: i32[T],
    seq_of: i32[T],
    block_tables: i32[S, B],
    write_key: function,
    write_value: function,
    items: T,
):
    """Write k[t], v[t] at positions[t] of sequence seq_of[t], if that is not below 0."""
    block_tokens = k_cache.shape[3]
    for t in items:
        if seq_of[t] < 0:
            continue
        block = block_tables[seq_of[t], positions[t] // block_tokens]
        at = positions[t] % block_tokens
        for h in range(k.shape[1]):
            write_key(k_cache, block, h, at, k, t)
            write_value(v_cache, block, h, at, v, t)


@kv_append.reference
def kv_append_reference(k_cache, v_cache, k, v, positions, seq_of, block_tables, variant):
    block_tokens = k_cache.shape[3]
    there = seq_of >= 0
    k, v, positions, seq_of = k[there], v[there], positions[there], seq_of[there]
    blocks = block_tables[seq_of, positions // block_tokens]
    put(k_cache, v_cache, k, v, blocks, positions % block_tokens, variant)
