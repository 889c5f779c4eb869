"""matmul with a weight of halves for up to 8 tokens on sm_90; see `few`."""

from numba import cuda
from numba.cuda import types

from kernels_cuda import few
from kernels_cuda.few_halves import TILE
from kernels_cuda.few_int8_rings import fixed_bytes, row_bytes_of, stages_of
from kernels_cuda.memory import dynamic_shared, registers
from kernels_cuda.ptx import (
    grid_go,
    grid_wait,
    load_f32,
    mma_bf16,
    mma_f16,
    put_4,
    put_f32,
    shared_16,
    shared_f32,
    store_f32,
    two_bfloats,
    two_halves,
)
from kernels_cuda.rings import arrived, fetch, open_ring

f32, i64, u32 = types.float32, types.int64, types.uint32
ROWS, WARPS = few.ROWS, few.WARPS
THREADS = 32 * WARPS
PARTIAL = few.BARRIERS
PIECE = 2048  # bytes: 16 rows by 64 columns
device = cuda.jit(device=True)


def put_rows_of(two):
    @device
    def put_rows(to, x, T, K, columns, thread):
        """Rows of float32 to shared memory as halves, with zeros up to so many columns."""
        row_bytes = row_bytes_of(columns, 2)
        pairs = columns // 2
        for i in range(thread, T * pairs, THREADS):
            t, c = i // pairs, i % pairs * 2
            p = x + (t * K + c) * 4
            a = load_f32(p) if c < K else f32(0.0)
            b = load_f32(p + 4) if c + 1 < K else f32(0.0)
            put_4(u32(to + t * row_bytes + c * 2), two(a, b))

    return put_rows


def make(name, tokens):
    """The kernel for a type of halves, for 1 or for up to 8 tokens."""
    mma, two = (mma_f16, two_halves) if name == "f16" else (mma_bf16, two_bfloats)
    put_rows = put_rows_of(two)
    floats = registers(4, f32)
    outputs = ROWS * tokens

    def matmul(out, weight, x, T, N, rows, row_bytes, K):
        grid_go()
        thread = i64(cuda.threadIdx.x)
        lane, warp = thread % 32, thread // 32
        base = i64(dynamic_shared())
        steps = (K + 63) // 64
        groups = (N + ROWS - 1) // ROWS
        fixed = fixed_bytes(steps * 64, 0, tokens, 2, 0)
        stages = stages_of(fixed, PIECE)
        x_at = base + PARTIAL + 2 * WARPS * outputs * 4
        ring = u32(base + fixed + warp * stages * PIECE)
        barriers = u32(base + warp * stages * 8)
        mine = (steps - warp + WARPS - 1) // WARPS
        group = i64(cuda.blockIdx.x)
        stride = i64(cuda.gridDim.x)
        total = (groups - group + stride - 1) // stride * mine
        open_ring(barriers, stages, lane)
        # Weights are not written by any kernel: the first ones come while others still run.
        coming = group
        source = weight + (coming // 8 * steps + warp) * TILE + coming % 8 * PIECE
        at, ahead = i64(0), i64(0)
        if lane == 0:
            for stage in range(stages):
                if ahead < total:
                    fetch(ring, barriers, stage, source, PIECE)
                    ahead += 1
                    at += 1
                    source += WARPS * TILE
                    if at == mine:
                        at = i64(0)
                        coming += stride
                        source = weight + (coming // 8 * steps + warp) * TILE + coming % 8 * PIECE
        grid_wait()
        put_rows(x_at, x, T, K, steps * 64, thread)
        cuda.syncthreads()
        x_row = x_at + min(lane // 4, T - 1) * row_bytes_of(steps * 64, 2) + lane % 4 * 16
        row = lane // 4
        near = row * 128 + ((lane % 4) ^ row) * 16
        far = row * 128 + ((lane % 4 + 4) ^ row) * 16
        stage, filling, buffer = i64(0), i64(0), i64(0)
        while group < groups:
            c = (f32(0.0), f32(0.0), f32(0.0), f32(0.0))
            for j in range(mine):
                arrived(barriers, stage, filling)
                p = ring + stage * PIECE
                v, w = shared_16(u32(p + near)), shared_16(u32(p + near + 1024))
                y, z = shared_16(u32(p + far)), shared_16(u32(p + far + 1024))
                cuda.syncwarp()
                if lane == 0 and ahead < total:
                    fetch(ring, barriers, stage, source, PIECE)
                    ahead += 1
                    at += 1
                    source += WARPS * TILE
                    if at == mine:
                        at = i64(0)
                        coming += stride
                        source = weight + (coming // 8 * steps + warp) * TILE + coming % 8 * PIECE
                k = x_row + (warp + j * WARPS) * 128
                b, d = shared_16(u32(k)), shared_16(u32(k + 64))
                c = mma(c, v[0], w[0], v[1], w[1], b[0], b[1])
                c = mma(c, v[2], w[2], v[3], w[3], b[2], b[3])
                c = mma(c, y[0], z[0], y[1], z[1], d[0], d[1])
                c = mma(c, y[2], z[2], y[3], z[3], d[2], d[3])
                stage += 1
                if stage == stages:
                    stage = i64(0)
                    filling += 1
            part = base + PARTIAL + buffer * (WARPS * outputs * 4)
            if tokens == 1:
                if lane % 4 == 0:
                    put_f32(u32(part + (warp * outputs + row) * 4), c[0])
                    put_f32(u32(part + (warp * outputs + row + 8) * 4), c[2])
            else:
                token = part + (warp * outputs + lane % 4 * 2 * ROWS + row) * 4
                put_f32(u32(token), c[0])
                put_f32(u32(token + ROWS * 4), c[1])
                put_f32(u32(token + 32), c[2])
                put_f32(u32(token + ROWS * 4 + 32), c[3])
            cuda.syncthreads()
            if thread < outputs:
                t, n = thread // ROWS, group * ROWS + thread % ROWS
                if t < T and n < N:
                    value = f32(0.0)
                    for i in range(WARPS):
                        value += shared_f32(u32(part + (i * outputs + thread) * 4))
                    store_f32(out + (t * N + n) * 4, value)
            buffer = 1 - buffer
            group += stride

    return matmul
