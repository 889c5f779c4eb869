"""Rows that feed a product with int8: SwiGLU and int8 at once."""

from __future__ import annotations

from kernels_cuda import Launch

THREADS = 256


def launch(op, variant, dims):
    return Launch((-(-dims["T"] * dims["K"] // (4 * THREADS)), 1, 1), (THREADS, 1, 1))


def kernel(op, variant):
    from numba import cuda
    from numba.cuda import types

    from kernels_cuda.elements import silu
    from kernels_cuda.int8 import store_block
    from kernels_cuda.ptx import grid_go, grid_wait, load_4_f32, quotient

    i64 = types.int64

    def swiglu_quantize(xq, xs, xsum, xtotal, gate_up, T, K, blocks, halves):
        grid_go()
        grid_wait()
        at = (i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x) * 4
        inside = at < T * K
        gate = gate_up + (quotient(at, K) * K + at) * 4 if inside else gate_up
        g, u = load_4_f32(gate), load_4_f32(gate + K * 4)
        store_block(
            xq,
            xs,
            xsum,
            xtotal,
            at,
            inside,
            silu(g[0]) * u[0],
            silu(g[1]) * u[1],
            silu(g[2]) * u[2],
            silu(g[3]) * u[3],
        )

    return swiglu_quantize
