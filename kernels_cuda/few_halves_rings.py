"""matmul with a weight of halves for up to 8 tokens on sm_90; see `few`."""

from numba import cuda
from numba.cuda import types

from kernels_cuda import few
from kernels_cuda.few_halves import TILE
from kernels_cuda.few_int8_rings import fixed_bytes, row_bytes_of, stages_of
from kernels_cuda.few_sums import put_eight, put_one, total_of
from kernels_cuda.memory import dynamic_shared
from kernels_cuda.ptx import (
    await_phase,
    grid_go,
    grid_wait,
    load_f32,
    mma_bf16,
    mma_f16,
    put_4,
    quotient,
    shared_16,
    store_f32,
    two_bfloats,
    two_halves,
)
from kernels_cuda.rings import fetch, open_ring

f32, i64, u32 = types.float32, types.int64, types.uint32
ROWS, WARPS = few.ROWS, few.WARPS
WARPS_SHIFT = WARPS.bit_length() - 1
THREADS = 32 * WARPS
PARTIAL = few.BARRIERS
PIECE = 2048  # bytes: 16 rows by 64 columns
device = cuda.jit(device=True)


def put_rows_of(two):
    @device
    def put_rows(to, x, T, K, columns, thread):
        """Rows of float32 to shared memory as halves, with zeros up to so many columns."""
        row_bytes = row_bytes_of(columns, 2)
        for t in range(T):
            at = u32(to + t * row_bytes + thread * 4)
            p = x + (t * K + 2 * thread) * 4
            for c in range(2 * thread, columns, 2 * THREADS):
                a = load_f32(p) if c < K else f32(0.0)
                b = load_f32(p + 4) if c + 1 < K else f32(0.0)
                put_4(at, two(a, b))
                at = u32(at + THREADS * 4)
                p += THREADS * 8

    return put_rows


def make(name, tokens):
    """The kernel for a type of halves, for 1 or for up to 8 tokens."""
    mma, two = (mma_f16, two_halves) if name == "f16" else (mma_bf16, two_bfloats)
    put_rows = put_rows_of(two)
    outputs = ROWS * tokens

    def matmul(out, weight, x, T, N, rows, row_bytes, K):
        grid_go()
        thread = i64(cuda.threadIdx.x)
        lane, warp = thread & 31, thread >> 5
        base = i64(dynamic_shared())
        steps = (K + 63) >> 6
        groups = (N + (ROWS - 1)) >> 4
        fixed = fixed_bytes(steps * 64, 0, tokens, 2, 0)
        stages = stages_of(fixed, PIECE)
        x_at = base + PARTIAL + 2 * WARPS * outputs * 4
        ring = u32(base + fixed + warp * stages * PIECE)
        barriers = u32(base + warp * stages * 8)
        past = u32(barriers + stages * 8)
        # Of the tiles of a group every sixteenth is this warp's.
        mine = (steps - warp + (WARPS - 1)) >> WARPS_SHIFT
        group, stride = i64(cuda.blockIdx.x), i64(cuda.gridDim.x)
        left = quotient(groups - group + stride - 1, stride) * mine
        open_ring(barriers, stages, lane)
        # Weights are not written by any kernel: the first ones come while others still run.
        ahead = group
        source = weight + ((ahead >> 3) * steps + warp) * TILE + (ahead & 7) * PIECE
        coming = mine
        place, barrier, parity = ring, barriers, u32(0)
        if lane == 0:
            while barrier != past and left > 0:
                fetch(place, barrier, source, PIECE)
                place, barrier = u32(place + PIECE), u32(barrier + 8)
                left -= 1
                source += WARPS * TILE
                coming -= 1
                if coming == 0:
                    coming = mine
                    ahead += stride
                    source = weight + ((ahead >> 3) * steps + warp) * TILE + (ahead & 7) * PIECE
            place, barrier = ring, barriers
        grid_wait()
        put_rows(x_at, x, T, K, steps * 64, thread)
        cuda.syncthreads()
        row = lane >> 2
        x_first = u32(
            x_at + min(row, T - 1) * row_bytes_of(steps * 64, 2) + (lane & 3) * 16 + warp * 128
        )
        near = u32(row * 128 + ((lane & 3) ^ row) * 16)
        far = u32(row * 128 + (((lane & 3) + 4) ^ row) * 16)
        at = row if tokens == 1 else (lane & 3) * (2 * ROWS) + row
        part = u32(base + PARTIAL + (warp * outputs + at) * 4)
        total_at = u32(base + PARTIAL + thread * 4)
        other = u32(WARPS * outputs * 4)
        token, n = thread >> 4, group * ROWS + (thread & 15)
        stores = thread < outputs and token < T
        to = out + (token * N + n) * 4
        while group < groups:
            c = (f32(0.0), f32(0.0), f32(0.0), f32(0.0))
            k = x_first
            for _ in range(mine):
                await_phase(barrier, parity)
                v, w = shared_16(u32(place + near)), shared_16(u32(place + near + 1024))
                y, z = shared_16(u32(place + far)), shared_16(u32(place + far + 1024))
                cuda.syncwarp()
                if lane == 0 and left > 0:
                    fetch(place, barrier, source, PIECE)
                    left -= 1
                    source += WARPS * TILE
                    coming -= 1
                    if coming == 0:
                        coming = mine
                        ahead += stride
                        source = weight + ((ahead >> 3) * steps + warp) * TILE + (ahead & 7) * PIECE
                b, d = shared_16(k), shared_16(u32(k + 64))
                c = mma(c, v[0], w[0], v[1], w[1], b[0], b[1])
                c = mma(c, v[2], w[2], v[3], w[3], b[2], b[3])
                c = mma(c, y[0], z[0], y[1], z[1], d[0], d[1])
                c = mma(c, y[2], z[2], y[3], z[3], d[2], d[3])
                k = u32(k + WARPS * 128)
                place, barrier = u32(place + PIECE), u32(barrier + 8)
                if barrier == past:
                    place, barrier, parity = ring, barriers, u32(parity ^ u32(1))
            if tokens == 1:
                put_one(part, lane, c[0], c[2])
            else:
                put_eight(part, lane, c)
            cuda.syncthreads()
            if stores and n < N:
                store_f32(to, total_of(total_at, outputs))
            # The sums of the next round go elsewhere: some threads may still read these.
            part, total_at = u32(part + other), u32(total_at + other)
            other = u32(-other)
            n += stride * ROWS
            to += stride * (ROWS * 4)
            group += stride

    return matmul
