"""Attention of a few tokens over the paged cache, in chunks of 64 tokens that blocks of
threads share: sums over each chunk, then the sum of those.

A chunk is counted from the start of the sequence, and chunks are taken together in order, so the
result depends on positions alone.
"""

from __future__ import annotations

from kernels_cuda import Launch

CHUNK = 64  # tokens: one block of the cache
THREADS = 128
MERGE_WARPS = 4
MOST_HEADS = 16  # query heads that share a KV head, at most


def launch(op, variant, dims):
    if op == "attention":
        shared = 4 * CHUNK * dims["head_dim"] * 2
        return Launch((-(-dims["T"] // 64), dims["heads"], 1), (THREADS, 1, 1), shared)
    if op == "attention_chunks":
        return Launch((dims["chunks"], dims["kv_heads"], dims["T"]), (THREADS, 1, 1))
    return Launch((dims["heads"], dims["T"], 1), (32 * MERGE_WARPS, 1, 1))


def kernel(op, variant):
    if op == "attention":
        from kernels_cuda.flash import make

        return make(int(variant.split(":")[1]), variant.split(":")[0])
    if op == "attention_chunks":
        from kernels_cuda.attention_chunks import make

        return make(int(variant.split(":")[1]), variant.split(":")[0])
    from kernels_cuda.attention_merge import make

    return make(op, int(variant.split(":")[1]))
