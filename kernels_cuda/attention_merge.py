"""attention_merge, alone and with int8 after it; see `attention`.

A block of four warps takes a head of a token. A warp takes every fourth chunk, a lane some
components of it.
"""

import math

from numba import cuda
from numba.cuda import types

from kernels_cuda.attention import MERGE_WARPS
from kernels_cuda.int8 import store_block
from kernels_cuda.memory import shared
from kernels_cuda.ptx import (
    exp2,
    grid_go,
    grid_wait,
    load_4_f32,
    load_f32,
    max_f32,
    store_4_f32,
)
from kernels_cuda.reductions import warp_max

f32, i64 = types.float32, types.int64
NOTHING = f32(-1e30)
LOG2_E = f32(math.log2(math.e))
device = cuda.jit(device=True)


def make(op, head_dim):
    lanes = head_dim // 4
    parts = shared(MERGE_WARPS * (head_dim + 4), f32)
    width = head_dim + 4

    @device
    def merged(sums, weights, heads, chunks):
        """Four components for each of the first `lanes` threads; nothing of use for the others."""
        h, t = i64(cuda.blockIdx.x), i64(cuda.blockIdx.y)
        thread = i64(cuda.threadIdx.x)
        lane, warp = thread & 31, thread >> 5
        first = (t * heads + h) * chunks
        largest = NOTHING
        for c in range(lane, chunks, 32):
            largest = max_f32(largest, load_f32(weights + (first + c) * 8))
        largest = warp_max(largest)
        a, b, c_, d = f32(0.0), f32(0.0), f32(0.0), f32(0.0)
        total = f32(0.0)
        for c in range(warp, chunks, MERGE_WARPS):
            weight = load_f32(weights + (first + c) * 8 + 4)
            if weight > f32(0.0):
                share = exp2((load_f32(weights + (first + c) * 8) - largest) * LOG2_E)
                total += weight * share
                if lane < lanes:
                    v = load_4_f32(sums + ((first + c) * head_dim + lane * 4) * 4)
                    a += share * v[0]
                    b += share * v[1]
                    c_ += share * v[2]
                    d += share * v[3]
        part = parts()
        if lane < lanes:
            at = warp * width + lane * 4
            part[at] = a
            part[at + 1] = b
            part[at + 2] = c_
            part[at + 3] = d
        if lane == 0:
            part[warp * width + head_dim] = total
        cuda.syncthreads()
        a, b, c_, d, total = f32(0.0), f32(0.0), f32(0.0), f32(0.0), f32(0.0)
        at = min(lane, lanes - 1) * 4
        for w in range(MERGE_WARPS):
            a += part[w * width + at]
            b += part[w * width + at + 1]
            c_ += part[w * width + at + 2]
            d += part[w * width + at + 3]
            total += part[w * width + head_dim]
        # A padded token sees nothing.
        scale = f32(1.0) / total if total > f32(0.0) else f32(0.0)
        return a * scale, b * scale, c_ * scale, d * scale

    def attention_merge(out, sums, weights, T, heads, head_dim_, few, chunks):
        grid_go()
        grid_wait()
        v = merged(sums, weights, heads, chunks)
        thread = i64(cuda.threadIdx.x)
        if thread < lanes:
            row = i64(cuda.blockIdx.y) * heads + cuda.blockIdx.x
            store_4_f32(out + (row * head_dim + thread * 4) * 4, v[0], v[1], v[2], v[3])

    def attention_merge_quantize(
        xq, xs, xsum, xtotal, sums, weights, T, K, blocks, halves, few, heads, chunks, head_dim_
    ):
        grid_go()
        grid_wait()
        v = merged(sums, weights, heads, chunks)
        thread = i64(cuda.threadIdx.x)
        if thread < 32:
            row = i64(cuda.blockIdx.y) * heads + cuda.blockIdx.x
            at = row * head_dim + thread * 4
            store_block(xq, xs, xsum, xtotal, at, thread < lanes, v[0], v[1], v[2], v[3])

    return attention_merge if op == "attention_merge" else attention_merge_quantize
