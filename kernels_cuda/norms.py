"""The kernels of `norm`."""

from numba import cuda
from numba.cuda import types

from kernels_cuda.int8 import store_block
from kernels_cuda.memory import shared
from kernels_cuda.norm import THREADS, WARPS
from kernels_cuda.ptx import (
    grid_go,
    grid_wait,
    load_4_f32,
    load_f32,
    rsqrt,
    store_4_f32,
    store_f32,
)
from kernels_cuda.reductions import block_sum

f32, i64 = types.float32, types.int64
warp_sums = shared(WARPS, f32)
total_of = block_sum(WARPS)
device = cuda.jit(device=True)


@device
def inverse_rms(total, n, eps):
    mean = total / f32(n) + eps
    guess = rsqrt(mean)
    # One Newton step: the instruction alone is good to 2 units.
    return guess * (f32(1.5) - f32(0.5) * mean * guess * guess)


def rmsnorm(out, x, weight, eps, rows, n):
    grid_go()
    row = i64(cuda.blockIdx.x) * n * 4
    thread = i64(cuda.threadIdx.x)
    grid_wait()
    total = f32(0.0)
    for i in range(thread, n, THREADS):
        value = load_f32(x + row + i * 4)
        total += value * value
    scale = inverse_rms(total_of(total, warp_sums()), n, eps)
    for i in range(thread, n, THREADS):
        value = load_f32(x + row + i * 4) * scale * load_f32(weight + i * 4)
        store_f32(out + row + i * 4, value)


@device
def normalise(xq, xs, xsum, xtotal, row, weight, scale, start, n, thread):
    """int8 of a row of n values, a multiple of 32, at address `row`; `start` counts the values of
    the rows before it. Lanes past the end do the last block once more."""
    for first in range(0, n, 4 * THREADS):
        i = first + thread * 4
        i = min(i, n - 32 + i % 32)
        v, w = load_4_f32(row + i * 4), load_4_f32(weight + i * 4)
        store_block(
            xq, xs, xsum, xtotal, start + i,
            v[0] * scale * w[0], v[1] * scale * w[1], v[2] * scale * w[2], v[3] * scale * w[3],
        )


def rmsnorm_quantize(xq, xs, xsum, xtotal, x, weight, eps, T, K, blocks, halves):
    grid_go()
    start = i64(cuda.blockIdx.x) * K
    row = x + start * 4
    thread = i64(cuda.threadIdx.x)
    grid_wait()
    total = f32(0.0)
    for i in range(thread * 4, K, 4 * THREADS):
        v = load_4_f32(row + i * 4)
        total += v[0] * v[0] + v[1] * v[1] + v[2] * v[2] + v[3] * v[3]
    scale = inverse_rms(total_of(total, warp_sums()), K, eps)
    normalise(xq, xs, xsum, xtotal, row, weight, scale, start, K, thread)


def add_rmsnorm_quantize(x, xq, xs, xsum, xtotal, y, weight, eps, T, K, blocks, halves):
    grid_go()
    start = i64(cuda.blockIdx.x) * K
    row = x + start * 4
    thread = i64(cuda.threadIdx.x)
    grid_wait()
    total = f32(0.0)
    for i in range(thread * 4, K, 4 * THREADS):
        v, w = load_4_f32(row + i * 4), load_4_f32(y + (start + i) * 4)
        a, b, c, d = v[0] + w[0], v[1] + w[1], v[2] + w[2], v[3] + w[3]
        store_4_f32(row + i * 4, a, b, c, d)
        total += a * a + b * b + c * c + d * d
    scale = inverse_rms(total_of(total, warp_sums()), K, eps)
    normalise(xq, xs, xsum, xtotal, row, weight, scale, start, K, thread)


def add_rmsnorm(x, out, y, weight, eps, T, K):
    grid_go()
    start = i64(cuda.blockIdx.x) * K
    row = x + start * 4
    thread = i64(cuda.threadIdx.x)
    grid_wait()
    total = f32(0.0)
    for i in range(thread, K, THREADS):
        v = load_f32(row + i * 4) + load_f32(y + (start + i) * 4)
        store_f32(row + i * 4, v)
        total += v * v
    scale = inverse_rms(total_of(total, warp_sums()), K, eps)
    for i in range(thread, K, THREADS):
        store_f32(out + (start + i) * 4, load_f32(row + i * 4) * scale * load_f32(weight + i * 4))
