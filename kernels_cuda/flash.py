"""attention of many tokens over the paged cache (Dao 2023, arXiv:2307.08691): a block of
four warps takes 64 neighbouring tokens of one head, a warp 16 of them.

Keys and values come 64 tokens at a time, one block of the cache, while those before are worked on.
Tokens of several sequences are dealt with one sequence after another.
"""

import math

from numba import cuda
from numba.cuda import types

from kernels_cuda.kv_blocks import block_bytes as block_bytes_of
from kernels_cuda.kv_blocks import reader
from kernels_cuda.memory import dynamic_shared, registers, shared
from kernels_cuda.ptx import (
    copies_come,
    copies_go,
    copy_16,
    exp2,
    grid_go,
    grid_wait,
    load_2_f32,
    load_i32,
    matrices,
    matrices_turned,
    max_f32,
    mma_f16,
    put_16,
    quotient,
    shuffle_xor,
    store_2_f32,
    two_halves,
)

f32, i64, i32, u32 = types.float32, types.int64, types.int32, types.uint32
TOKENS = 64
THREADS = 128
LOG2_E = f32(math.log2(math.e))
NOTHING = f32(-1e30)
come_all, come_but_one = copies_come[0], copies_come[1]
device = cuda.jit(device=True)


def make(head_dim, kind):
    eight, block_bytes = reader(kind, head_dim), block_bytes_of(kind, head_dim)
    pieces = head_dim // 8  # of 16 bytes in a row
    piece_mask, piece_shift = pieces - 1, pieces.bit_length() - 1
    row_bytes = 2 * head_dim
    tile_bytes = TOKENS * row_bytes
    depth, width = head_dim // 16, head_dim // 8
    query_of = registers(4 * depth, u32)
    scores_of, sums_of = registers(32, f32), registers(4 * width, f32)
    ints = shared(2 * TOKENS, i32)

    @device
    def fetch_f16(place, cache, block, kv_heads, g, known, thread):
        """Start the copies of a block's tokens, of which so many are known; the others are zero.
        Piece p of row r lies at p ^ (r % 8)."""
        source = cache + (block * kv_heads + g) * tile_bytes
        for i in range(thread, TOKENS * pieces, THREADS):
            r, p = i >> piece_shift, i & piece_mask
            size = u32(16) if r < known else u32(0)
            copy_16(u32(place + r * row_bytes + (p ^ (r & 7)) * 16), source + i * 16, size)

    @device
    def fetch_quants(place, cache, block, kv_heads, g, known, thread):
        """The same for quants, which are made halves on the way; they are there at once."""
        source = cache + (block * kv_heads + g) * block_bytes
        for i in range(thread, TOKENS * pieces, THREADS):
            r, p = i >> piece_shift, i & piece_mask
            w = eight(source, r, p * 8)
            to = u32(place + r * row_bytes + (p ^ (r & 7)) * 16)
            if r < known:
                put_16(to, w[0], w[1], w[2], w[3])
            else:
                put_16(to, u32(0), u32(0), u32(0), u32(0))

    fetch = fetch_f16 if kind == "f16" else fetch_quants

    def attention(
        out,
        q,
        k_cache,
        v_cache,
        positions,
        seq_of,
        block_tables,
        scale,
        window,
        T,
        heads,
        head_dim_,
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
        thread = i64(cuda.threadIdx.x)
        lane, warp = thread & 31, thread >> 5
        h = i64(cuda.blockIdx.y)
        g = quotient(h, quotient(heads, kv_heads))
        # The last tokens see most, so they begin.
        t0 = (i64(cuda.gridDim.x) - 1 - i64(cuda.blockIdx.x)) * TOKENS
        n = min(i64(TOKENS), T - t0)
        base = i64(dynamic_shared())
        known = ints()
        if thread < TOKENS:
            known[thread] = -1
            if thread < n:
                known[thread] = load_i32(seq_of + (t0 + thread) * 4)
                known[TOKENS + thread] = load_i32(positions + (t0 + thread) * 4)
        grid_wait()
        query, scores, sums = query_of(), scores_of(), sums_of()
        row = warp * 16 + (lane >> 2)
        factor = scale * LOG2_E
        for half in range(2):
            t = min(t0 + row + 8 * half, T - 1)
            p = q + ((t * heads + h) * head_dim + (lane & 3) * 2) * 4
            for i in range(depth):
                a, b = load_2_f32(p + i * 64), load_2_f32(p + i * 64 + 32)
                query[4 * i + half] = two_halves(a[0] * factor, a[1] * factor)
                query[4 * i + 2 + half] = two_halves(b[0] * factor, b[1] * factor)
        for i in range(4 * width):
            sums[i] = f32(0.0)
        largest_low, largest_high = NOTHING, NOTHING
        total_low, total_high = f32(0.0), f32(0.0)
        cuda.syncthreads()
        seq_low, seq_high = i64(known[row]), i64(known[row + 8])
        position_low, position_high = i64(known[TOKENS + row]), i64(known[TOKENS + row + 8])
        start = i64(0)
        while start < n:
            sequence = i64(known[start])
            end = n
            if known[n - 1] != sequence:
                end = start + 1
                while end < n and known[end] == sequence:
                    end += 1
            last = i64(known[TOKENS + end - 1])
            first_block = i64(0)
            if window > 0:
                first_block = max(i64(0), i64(known[TOKENS + start]) - window + 1) >> 6
            # The last tokens that the rows of this warp see, of this sequence.
            last_low = position_low if seq_low == sequence else i64(-1)
            last_high = position_high if seq_high == sequence else i64(-1)
            first_low = max(i64(0), last_low - window + 1) if window > 0 else i64(0)
            first_high = max(i64(0), last_high - window + 1) if window > 0 else i64(0)
            blocks = (last >> 6) + 1 if sequence >= 0 else i64(0)
            table = block_tables + sequence * B * 4
            if blocks > first_block:
                block = load_i32(table + first_block * 4)
                left = last + 1 - first_block * 64
                fetch(base, k_cache, block, kv_heads, g, left, thread)
                fetch(base + tile_bytes, v_cache, block, kv_heads, g, left, thread)
            copies_go()
            for c in range(first_block, blocks):
                buffer = base + ((c - first_block) & 1) * (2 * tile_bytes)
                if c + 1 < blocks:
                    other = base + ((c - first_block + 1) & 1) * (2 * tile_bytes)
                    block = load_i32(table + (c + 1) * 4)
                    left = last + 1 - (c + 1) * 64
                    fetch(other, k_cache, block, kv_heads, g, left, thread)
                    fetch(other + tile_bytes, v_cache, block, kv_heads, g, left, thread)
                copies_go()
                come_but_one()
                cuda.syncthreads()
                for i in range(32):
                    scores[i] = f32(0.0)
                for i in range(depth):
                    for j in range(4):
                        # Keys 16 j to 16 j + 15, components 16 i to 16 i + 15.
                        r = j * 16 + (lane & 7) + ((lane >> 4) << 3)
                        p = 2 * i + ((lane >> 3) & 1)
                        b = matrices(u32(buffer + r * row_bytes + (p ^ (r & 7)) * 16))
                        for m in range(2):
                            at = 8 * j + 4 * m
                            d = (scores[at], scores[at + 1], scores[at + 2], scores[at + 3])
                            b0 = b[0] if m == 0 else b[2]
                            b1 = b[1] if m == 0 else b[3]
                            d = mma_f16(
                                d,
                                query[4 * i],
                                query[4 * i + 1],
                                query[4 * i + 2],
                                query[4 * i + 3],
                                b0,
                                b1,
                            )
                            scores[at], scores[at + 1], scores[at + 2], scores[at + 3] = d
                token = c * 64 + (lane & 3) * 2
                if c * 64 + 63 > min(last_low, last_high) or window > 0:
                    for j in range(8):
                        for e in range(2):
                            k = token + 8 * j + e
                            if k > last_low or k < first_low:
                                scores[4 * j + e] = NOTHING
                            if k > last_high or k < first_high:
                                scores[4 * j + 2 + e] = NOTHING
                low, high = largest_low, largest_high
                for j in range(8):
                    low = max_f32(low, max_f32(scores[4 * j], scores[4 * j + 1]))
                    high = max_f32(high, max_f32(scores[4 * j + 2], scores[4 * j + 3]))
                low = max_f32(low, shuffle_xor(low, u32(1)))
                low = max_f32(low, shuffle_xor(low, u32(2)))
                high = max_f32(high, shuffle_xor(high, u32(1)))
                high = max_f32(high, shuffle_xor(high, u32(2)))
                shrink_low, shrink_high = exp2(largest_low - low), exp2(largest_high - high)
                largest_low, largest_high = low, high
                total_low *= shrink_low
                total_high *= shrink_high
                for i in range(width):
                    sums[4 * i] *= shrink_low
                    sums[4 * i + 1] *= shrink_low
                    sums[4 * i + 2] *= shrink_high
                    sums[4 * i + 3] *= shrink_high
                # While a row has seen nothing its largest is NOTHING, and so are all its scores.
                keep_low = f32(1.0) if low > NOTHING else f32(0.0)
                keep_high = f32(1.0) if high > NOTHING else f32(0.0)
                for j in range(8):
                    for e in range(2):
                        w = exp2(scores[4 * j + e] - low) * keep_low
                        total_low += w
                        scores[4 * j + e] = w
                        w = exp2(scores[4 * j + 2 + e] - high) * keep_high
                        total_high += w
                        scores[4 * j + 2 + e] = w
                for j in range(4):
                    a0 = two_halves(scores[8 * j], scores[8 * j + 1])
                    a1 = two_halves(scores[8 * j + 2], scores[8 * j + 3])
                    a2 = two_halves(scores[8 * j + 4], scores[8 * j + 5])
                    a3 = two_halves(scores[8 * j + 6], scores[8 * j + 7])
                    for i in range(depth):
                        # Values of tokens 16 j to 16 j + 15, components 16 i to 16 i + 15.
                        r = j * 16 + (lane & 15)
                        p = 2 * i + (lane >> 4)
                        b = matrices_turned(
                            u32(buffer + tile_bytes + r * row_bytes + (p ^ (r & 7)) * 16)
                        )
                        for m in range(2):
                            at = 8 * i + 4 * m
                            d = (sums[at], sums[at + 1], sums[at + 2], sums[at + 3])
                            b0 = b[0] if m == 0 else b[2]
                            b1 = b[1] if m == 0 else b[3]
                            d = mma_f16(d, a0, a1, a2, a3, b0, b1)
                            sums[at], sums[at + 1], sums[at + 2], sums[at + 3] = d
                cuda.syncthreads()
            come_all()
            cuda.syncthreads()
            start = end
        total_low += shuffle_xor(total_low, u32(1))
        total_low += shuffle_xor(total_low, u32(2))
        total_high += shuffle_xor(total_high, u32(1))
        total_high += shuffle_xor(total_high, u32(2))
        # A padded token sees nothing.
        low = f32(1.0) / total_low if total_low > f32(0.0) else f32(0.0)
        high = f32(1.0) / total_high if total_high > f32(0.0) else f32(0.0)
        p = out + (((t0 + row) * heads + h) * head_dim + (lane & 3) * 2) * 4
        other = 8 * heads * head_dim * 4
        for i in range(width):
            if row < n:
                store_2_f32(p + i * 32, sums[4 * i] * low, sums[4 * i + 1] * low)
            if row + 8 < n:
                store_2_f32(p + other + i * 32, sums[4 * i + 2] * high, sums[4 * i + 3] * high)

    attention.threads = THREADS
    return attention
