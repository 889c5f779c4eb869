"""read_sweep: reads memory once and keeps next to nothing, for a bandwidth to compare with."""

from __future__ import annotations

from kernels_cuda import Launch

THREADS = 512
BLOCKS = 132 * 4


def launch(op, variant, dims):
    return Launch((BLOCKS, 1, 1), (THREADS, 1, 1))


def kernel(op, variant):
    from numba import cuda
    from numba.cuda import types

    from kernels_cuda.ptx import grid_go, grid_wait, store_4, stream_16

    i64, u32 = types.int64, types.uint32

    def read_sweep(out, data, n, size):
        grid_go()
        grid_wait()
        at = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        stride = BLOCKS * THREADS * 16
        found = u32(0)
        for p in range(at * 16, size - 3 * stride, 4 * stride):
            a, b = stream_16(data + p), stream_16(data + p + stride)
            c, d = stream_16(data + p + 2 * stride), stream_16(data + p + 3 * stride)
            found ^= a[0] ^ a[1] ^ a[2] ^ a[3] ^ b[0] ^ b[1] ^ b[2] ^ b[3]
            found ^= c[0] ^ c[1] ^ c[2] ^ c[3] ^ d[0] ^ d[1] ^ d[2] ^ d[3]
        if found == u32(0x12345678):
            store_4(out + at % n * 4, found)

    return read_sweep
