"""attention_chunks; see `attention`.

A block of four warps takes a chunk of one KV head and all query heads that share it. Scores come
from the tensor cores, 16 tokens a warp: rows are query heads, columns tokens. The values' sums are
plain float32: a lane holds 8 components of every eighth token.
"""

import math

from numba import cuda
from numba.cuda import types

from kernels_cuda.attention import CHUNK, MOST_HEADS
from kernels_cuda.kv_blocks import block_bytes as block_bytes_of
from kernels_cuda.kv_blocks import reader
from kernels_cuda.memory import registers, shared
from kernels_cuda.ptx import (
    exp2,
    grid_go,
    grid_wait,
    high_half,
    load_4_f32,
    load_i32,
    low_half,
    mma_f16,
    quotient,
    shuffle_xor,
    store_f32,
    two_halves,
)
from kernels_cuda.reductions import warp_max, warp_sum

f32, i64, u32 = types.float32, types.int64, types.uint32
NOTHING = f32(-1e30)
LOG2_E = f32(math.log2(math.e))
device = cuda.jit(device=True)
GROUP = 4  # query heads whose sums of values a lane holds at a time


@device
def eight_halves(p, scale):
    a, b = load_4_f32(p), load_4_f32(p + 16)
    return (
        two_halves(a[0] * scale, a[1] * scale),
        two_halves(a[2] * scale, a[3] * scale),
        two_halves(b[0] * scale, b[1] * scale),
        two_halves(b[2] * scale, b[3] * scale),
    )


def make(head_dim, kind):
    eight, block_bytes = reader(kind, head_dim), block_bytes_of(kind, head_dim)
    pieces = head_dim // 32  # of 8 components, for each of the four lanes of a row
    lanes = head_dim // 8  # that share a token's values
    slots = 128 // lanes  # tokens whose values the block adds at a time
    rounds = CHUNK // slots
    scores_of = shared(MOST_HEADS * CHUNK, f32)
    sums_of = shared(4 * GROUP * head_dim, f32)
    keys_of, values_of = registers(2 * 4 * pieces, u32), registers(4 * rounds, u32)
    query_of, group_sums = registers(8 * pieces, u32), registers(GROUP * 8, f32)
    per_warp = 32 // lanes
    dim_shift, lanes_shift = head_dim.bit_length() - 1, lanes.bit_length() - 1

    def attention_chunks(
        sums,
        weights,
        q,
        k_cache,
        v_cache,
        positions,
        seq_of,
        block_tables,
        scale,
        window,
        few,
        heads,
        chunks,
        head_dim_,
        T,
        n_blocks,
        kv_heads,
        k_lines,
        block_tokens,
        v_lines,
        v_line,
        S,
        B,
    ):
        grid_go()
        c, g, t = i64(cuda.blockIdx.x), i64(cuda.blockIdx.y), i64(cuda.blockIdx.z)
        thread = i64(cuda.threadIdx.x)
        lane, warp = thread & 31, thread >> 5
        group = quotient(heads, kv_heads)
        first_head = g * group
        # No kernel writes what the batch is made of.
        sequence = load_i32(seq_of + t * 4)
        position = load_i32(positions + t * 4)
        last = position - c * CHUNK
        first = i64(0)
        if window > 0:
            first = position - window + 1 - c * CHUNK
        part = (t * heads + first_head) * chunks + c
        if sequence < 0 or last < 0 or first >= CHUNK:
            grid_wait()
            if thread < group:
                store_f32(weights + (part + thread * chunks) * 8, NOTHING)
                store_f32(weights + (part + thread * chunks) * 8 + 4, f32(0.0))
            return
        block = load_i32(block_tables + (sequence * B + c) * 4)
        base = (block * kv_heads + g) * block_bytes
        keys, values, query = keys_of(), values_of(), query_of()
        # Where this step's tokens do not lie the cache can be read before they are there.
        early = last - T >= CHUNK
        if not early:
            grid_wait()
        # All keys and values of the lane at once.
        for n in range(2):
            token = warp * 16 + n * 8 + (lane >> 2)
            for i in range(pieces):
                r = eight(k_cache + base, token, (lane & 3) * 8 + i * 32)
                for j in range(4):
                    keys[(n * pieces + i) * 4 + j] = r[j]
        slot = warp * per_warp + (lane >> lanes_shift)
        for i in range(rounds):
            r = eight(v_cache + base, slot + i * slots, (lane & (lanes - 1)) * 8)
            for j in range(4):
                values[i * 4 + j] = r[j]
        if early:
            grid_wait()
        head = lane >> 2
        for half in range(2):
            row = min(head + half * 8, group - 1)
            p = q + ((t * heads + first_head + row) * head_dim + (lane & 3) * 8) * 4
            for i in range(pieces):
                r = eight_halves(p + i * 128, f32(1.0))
                for j in range(4):
                    query[(half * pieces + i) * 4 + j] = r[j]
        scores = scores_of()
        for n in range(2):
            d = (f32(0.0), f32(0.0), f32(0.0), f32(0.0))
            for i in range(pieces):
                a, b, k = i * 4, (pieces + i) * 4, (n * pieces + i) * 4
                d = mma_f16(d, query[a], query[b], query[a + 1], query[b + 1], keys[k], keys[k + 1])
                d = mma_f16(
                    d,
                    query[a + 2],
                    query[b + 2],
                    query[a + 3],
                    query[b + 3],
                    keys[k + 2],
                    keys[k + 3],
                )
            j = warp * 16 + n * 8 + (lane & 3) * 2
            scores[head * CHUNK + j] = d[0]
            scores[head * CHUNK + j + 1] = d[1]
            scores[(head + 8) * CHUNK + j] = d[2]
            scores[(head + 8) * CHUNK + j + 1] = d[3]
        cuda.syncthreads()
        # A warp takes every fourth head, a lane two of its scores.
        for h in range(warp, (group + (GROUP - 1)) & ~(GROUP - 1), 4):
            low = low_score(scores[h * CHUNK + lane] * scale, lane, first, last)
            high = low_score(scores[h * CHUNK + lane + 32] * scale, lane + 32, first, last)
            largest = warp_max(max(low, high))
            low = exp2((low - largest) * LOG2_E) if low > NOTHING else f32(0.0)
            high = exp2((high - largest) * LOG2_E) if high > NOTHING else f32(0.0)
            total = warp_sum(low + high)
            scores[h * CHUNK + lane] = low
            scores[h * CHUNK + lane + 32] = high
            if lane == 0 and h < group:
                store_f32(weights + (part + h * chunks) * 8, largest)
                store_f32(weights + (part + h * chunks) * 8 + 4, total)
        cuda.syncthreads()
        over = sums_of()
        for h in range(0, group, GROUP):
            add = group_sums()
            for i in range(GROUP * 8):
                add[i] = f32(0.0)
            for i in range(rounds):
                seen = i * slots + slot
                inside = seen <= last and seen >= first
                for j in range(4):
                    # What lies past the last token may be anything.
                    word = values[i * 4 + j] if inside else u32(0)
                    even, odd = low_half(word), high_half(word)
                    for m in range(GROUP):
                        weight = scores[(h + m) * CHUNK + seen]
                        add[m * 8 + 2 * j] += weight * even
                        add[m * 8 + 2 * j + 1] += weight * odd
            for i in range(GROUP * 8):
                if per_warp == 4:
                    add[i] += shuffle_xor(add[i], u32(8))
                add[i] += shuffle_xor(add[i], u32(16))
            if lane < lanes:
                for m in range(GROUP):
                    for i in range(8):
                        over[(warp * GROUP + m) * head_dim + lane * 8 + i] = add[m * 8 + i]
            cuda.syncthreads()
            for i in range(thread, GROUP * head_dim, 128):
                m, d_ = i >> dim_shift, i & (head_dim - 1)
                if h + m < group:
                    total = over[m * head_dim + d_]
                    for w in range(1, 4):
                        total += over[(w * GROUP + m) * head_dim + d_]
                    store_f32(sums + ((part + (h + m) * chunks) * head_dim + d_) * 4, total)
            cuda.syncthreads()

    return attention_chunks


@device
def low_score(score, token, first, last):
    """The score of a token that is seen."""
    return score if token <= last and token >= first else NOTHING
