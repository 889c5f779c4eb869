"""matmul with a weight of halves for few tokens; see `matmul`. Activations are rounded to the
weight's type, sums are float32."""

from numba import cuda
from numba.cuda import types

from kernels_cuda.memory import registers, shared
from kernels_cuda.ptx import (
    grid_go,
    grid_wait,
    load_4_f32,
    load_f32,
    mma_bf16,
    mma_f16,
    store_f32,
    stream_16,
    two_bfloats,
    two_halves,
)

f32, i64 = types.float32, types.int64
ROWS = 16
TILE = 16384
device = cuda.jit(device=True)


@device
def load_tile(p, lane):
    """A lane's pieces of 16 rows by 64 columns: (row l / 4, piece l % 4), the same 8 rows further,
    then piece l % 4 + 4 of both. p is the address of the first of the rows."""
    row = lane // 4
    q = p + row * 128 + ((lane % 4) ^ row) * 16
    other = p + row * 128 + ((lane % 4 + 4) ^ row) * 16
    return stream_16(q) + stream_16(q + 1024) + stream_16(other) + stream_16(other + 1024)


def eight_of(two):
    """The function that loads 8 values of a row as 4 registers; zeros past its end at n."""

    @device
    def value(row, k, n):
        return load_f32(row + k * 4) if k < n else f32(0.0)

    @device
    def load(row, k, n, aligned):
        if aligned and k + 8 <= n:
            a, b = load_4_f32(row + k * 4), load_4_f32(row + k * 4 + 16)
            return two(a[0], a[1]), two(a[2], a[3]), two(b[0], b[1]), two(b[2], b[3])
        return (
            two(value(row, k, n), value(row, k + 1, n)),
            two(value(row, k + 2, n), value(row, k + 3, n)),
            two(value(row, k + 4, n), value(row, k + 5, n)),
            two(value(row, k + 6, n), value(row, k + 7, n)),
        )

    return load


def make(name, tokens, warps):
    """The kernel for a type of halves, up to so many tokens, by blocks of so many warps."""
    mma, two = (mma_f16, two_halves) if name == "f16" else (mma_bf16, two_bfloats)
    eight = eight_of(two)
    tiles = max(1, tokens // 8)
    n_sums = 4 * tiles
    addresses = registers(tiles, i64)
    floats, parts = registers(n_sums, f32), shared(warps * ROWS * 8 * tiles, f32)
    outputs = ROWS * 8 * tiles
    threads = 32 * warps

    def matmul(out, weight, x, T, N, rows, row_bytes, K):
        grid_go()
        thread = cuda.threadIdx.x
        lane = thread % 32
        warp = thread // 32
        first = i64(cuda.blockIdx.x) * ROWS
        steps = (K + 63) // 64
        p = weight + (first // 128 * steps + warp) * TILE + first % 128 * 128
        # Weights are not written by any kernel: the first ones come while others still run.
        r = load_tile(p, lane) if warp < steps else load_tile(weight, lane)
        grid_wait()
        first_token = i64(cuda.blockIdx.y) * (8 * tiles)
        aligned = K % 4 == 0
        row = addresses()
        sums = floats()
        for n in range(tiles):
            row[n] = x + min(first_token + 8 * n + lane // 4, T - 1) * K * 4
        for i in range(n_sums):
            sums[i] = f32(0.0)
        for at in range(warp, steps, warps):
            w = r
            p += warps * TILE
            if at + warps < steps:
                r = load_tile(p, lane)
            k = at * 64 + lane % 4 * 8
            for n in range(tiles):
                c = (sums[4 * n], sums[4 * n + 1], sums[4 * n + 2], sums[4 * n + 3])
                b = eight(row[n], k, K, aligned)
                c = mma(c, w[0], w[4], w[1], w[5], b[0], b[1])
                c = mma(c, w[2], w[6], w[3], w[7], b[2], b[3])
                b = eight(row[n], k + 32, K, aligned)
                c = mma(c, w[8], w[12], w[9], w[13], b[0], b[1])
                c = mma(c, w[10], w[14], w[11], w[15], b[2], b[3])
                sums[4 * n], sums[4 * n + 1], sums[4 * n + 2], sums[4 * n + 3] = c
        part = parts()
        for i in range(n_sums):
            r_row = lane // 4 + i // 2 % 2 * 8
            token = i // 4 * 8 + lane % 4 * 2 + i % 2
            part[(warp * 8 * tiles + token) * ROWS + r_row] = sums[i]
        cuda.syncthreads()
        for i in range(thread, outputs, threads):
            token = first_token + i // ROWS
            n_row = first + i % ROWS
            if token < T and n_row < N:
                total = f32(0.0)
                for w_ in range(warps):
                    total += part[w_ * outputs + i]
                store_f32(out + (token * N + n_row) * 4, total)

    return matmul
