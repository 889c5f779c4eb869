"""quantize: activations to int8."""

from __future__ import annotations

from kernels_cuda import Launch

THREADS = 256


def launch(op, variant, dims):
    return Launch((-(-dims["T"] * dims["K"] // (4 * THREADS)), 1, 1), (THREADS, 1, 1))


def kernel(op, variant):
    from numba import cuda
    from numba.cuda import types

    from kernels_cuda.int8 import store_block
    from kernels_cuda.ptx import grid_go, grid_wait, load_4_f32

    i64 = types.int64

    def quantize(xq, xs, xsum, xtotal, x, T, width, blocks, halves, K):
        grid_go()
        grid_wait()
        at = (i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x) * 4
        inside = at < T * K
        v = load_4_f32(x + at * 4 if inside else x)
        store_block(xq, xs, xsum, xtotal, at, inside, v[0], v[1], v[2], v[3])

    return quantize
