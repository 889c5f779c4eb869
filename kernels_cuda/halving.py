"""halve: activations to halves, in tiles and in the order that `wide_products` takes them.

In each 32 columns the position 16 i + 8 h + 2 m + e holds column 8 m + 4 i + 2 h + e, so that eight
neighbouring columns of a weight, which one lane holds, meet theirs in two products of 16 columns.
"""

from numba import cuda
from numba.cuda import types

from kernels_cuda.ptx import (
    grid_go,
    grid_wait,
    load_2_f32,
    load_f32,
    quotient,
    store_16,
    two_bfloats,
    two_halves,
)
from kernels_cuda.tiles import piece_at

f32, i64, u32 = types.float32, types.int64, types.uint32
device = cuda.jit(device=True)


@device
def pair_at(x, row, k, T, K):
    """Two values of a row, zeros where there are none."""
    if row >= T or k >= K:
        return f32(0.0), f32(0.0)
    at = x + (row * K + k) * 4
    if K & 1 == 0:
        return load_2_f32(at)
    return load_f32(at), load_f32(at + 4) if k + 1 < K else f32(0.0)


def make(variant):
    two = two_halves if variant == "f16" else two_bfloats

    def halve(xh, x, size, T, K):
        grid_go()
        i = i64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        columns = ((K + 255) >> 8) << 2
        row = quotient(i, columns * 8)
        piece = i - row * (columns * 8)
        k = (piece >> 2) * 32 + ((piece >> 1) & 1) * 4 + (piece & 1) * 2
        grid_wait()
        if i < size >> 3:
            a, b = pair_at(x, row, k, T, K), pair_at(x, row, k + 8, T, K)
            c, d = pair_at(x, row, k + 16, T, K), pair_at(x, row, k + 24, T, K)
            store_16(
                xh + piece_at(row, piece, columns),
                two(a[0], a[1]),
                two(b[0], b[1]),
                two(c[0], c[1]),
                two(d[0], d[1]),
            )

    return halve
