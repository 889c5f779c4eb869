"""kv_append: keys and values into the paged cache; see `kv_blocks`. In quantised types a warp takes
a head of a token, 32 components at a time."""

from __future__ import annotations

from kernels_cuda import Launch

THREADS = 256
BYTES = {"q8_0": 32, "q4_0": 16}  # of the quants of 32 components


def launch(op, variant, dims):
    if variant == "f16":
        threads = dims["T"] * dims["heads"] * dims["head_dim"]
        return Launch((-(-threads // THREADS), 1, 1), (THREADS, 1, 1))
    warps = 2 * dims["T"] * dims["heads"]
    return Launch((-(-warps * 32 // THREADS), 1, 1), (THREADS, 1, 1))


def kernel(op, variant):
    if variant == "f16":
        from kernels_cuda.elements import kv_append as append_halves

        return append_halves
    from numba import cuda
    from numba.cuda import types

    from kernels_cuda import kv_blocks
    from kernels_cuda.ptx import grid_go, grid_wait, load_f32, load_i32, quotient

    i64 = types.int64
    write = {"q8_0": kv_blocks.write_q8_0, "q4_0": kv_blocks.write_q4_0}[variant]
    group_bytes = BYTES[variant]

    def kv_append(
        k_cache,
        v_cache,
        k,
        v,
        positions,
        seq_of,
        block_tables,
        n_blocks,
        heads,
        k_lines,
        block_tokens,
        v_lines,
        v_line,
        T,
        head_dim,
        S,
        B,
    ):
        grid_go()
        at = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        lane, row = at & 31, at >> 6
        # No kernel writes what the batch is made of.
        sequence, t = i64(-1), quotient(row, heads)
        if t < T:
            sequence = load_i32(seq_of + t * 4)
        grid_wait()
        if sequence < 0:
            return
        position = load_i32(positions + t * 4)
        block = load_i32(block_tables + (sequence * B + (position >> 6)) * 4)
        token, groups = position & 63, head_dim >> 5
        x, cache = (k, k_cache) if (at >> 5) & 1 == 0 else (v, v_cache)
        x += row * head_dim * 4
        place = cache + (block * heads + row - t * heads) * (64 * groups * (group_bytes + 2))
        quants = place + token * groups * group_bytes
        scales = place + 64 * groups * group_bytes + token * groups * 2
        for group in range(groups):
            value = load_f32(x + (group * 32 + lane) * 4)
            write(quants + group * group_bytes, scales + group * 2, lane, value)

    return kv_append
