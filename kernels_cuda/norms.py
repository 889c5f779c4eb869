"""The kernels of `norm`."""

from numba import cuda
from numba.cuda import types

from kernels_cuda.int8 import store_block
from kernels_cuda.memory import registers, shared
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
KEPT = 8  # values of a thread that stay in registers, in the kernels without int8
kept = registers(KEPT, f32)
warp_sums = shared(WARPS, f32)
total_of = block_sum(WARPS)
device = cuda.jit(device=True)


@device
def inverse_rms(total, n, eps):
    mean = total / f32(n) + eps
    guess = rsqrt(mean)
    # One Newton step: the instruction alone is good to 2 units.
    return guess * (f32(1.5) - f32(0.5) * mean * guess * guess)


@device
def sum_row(row, y, adds, n, start, at):
    """The sum of squares of this thread's values of a row from `start` on, y added if it `adds`."""
    total = f32(0.0)
    for i in range(start, n, 4 * THREADS):
        v = added(row, y, adds, i, at)
        total += v[0] * v[0] + v[1] * v[1] + v[2] * v[2] + v[3] * v[3]
    return total


@device
def added(row, y, adds, i, at):
    """Four values from i on, y added to them in place if it `adds`."""
    v = load_4_f32(row + i * 4)
    if adds:
        w = load_4_f32(y + (at + i) * 4)
        v = (v[0] + w[0], v[1] + w[1], v[2] + w[2], v[3] + w[3])
        store_4_f32(row + i * 4, v[0], v[1], v[2], v[3])
    return v


@device
def put_four(xq, xs, xsum, xtotal, at, inside, v, w, scale):
    store_block(
        xq,
        xs,
        xsum,
        xtotal,
        at,
        inside,
        v[0] * scale * w[0],
        v[1] * scale * w[1],
        v[2] * scale * w[2],
        v[3] * scale * w[3],
    )


@device
def normalise(xq, xs, xsum, xtotal, x, y, adds, weight, eps, K):
    """int8 of a block's row of x, y added to it in place if it `adds`. Eight values of each thread
    stay in registers, which is all of them up to 4096; K is a multiple of 32."""
    at = i64(cuda.blockIdx.x) * K
    row = x + at * 4
    one = i64(cuda.threadIdx.x) * 4
    two = one + 4 * THREADS
    first, second = one < K, two < K
    w = load_4_f32(weight + one * 4 if first else weight)
    u = load_4_f32(weight + two * 4 if second else weight)
    grid_wait()
    # All is read before anything is written: the other order would wait for memory twice.
    none = (f32(0.0), f32(0.0), f32(0.0), f32(0.0))
    v, r = none, none
    if first:
        v = load_4_f32(row + one * 4)
    if second:
        r = load_4_f32(row + two * 4)
    if adds:
        a, b = none, none
        if first:
            a = load_4_f32(y + (at + one) * 4)
        if second:
            b = load_4_f32(y + (at + two) * 4)
        v = (v[0] + a[0], v[1] + a[1], v[2] + a[2], v[3] + a[3])
        r = (r[0] + b[0], r[1] + b[1], r[2] + b[2], r[3] + b[3])
        if first:
            store_4_f32(row + one * 4, v[0], v[1], v[2], v[3])
        if second:
            store_4_f32(row + two * 4, r[0], r[1], r[2], r[3])
    total = v[0] * v[0] + v[1] * v[1] + v[2] * v[2] + v[3] * v[3]
    total += r[0] * r[0] + r[1] * r[1] + r[2] * r[2] + r[3] * r[3]
    total += sum_row(row, y, adds, K, two + 4 * THREADS, at)
    scale = inverse_rms(total_of(total, warp_sums()), K, eps)
    put_four(xq, xs, xsum, xtotal, at + one, first, v, w, scale)
    put_four(xq, xs, xsum, xtotal, at + two, second, r, u, scale)
    for start in range(8 * THREADS, K, 4 * THREADS):
        i = start + one
        inside = i < K
        v = load_4_f32(row + i * 4 if inside else row)
        w = load_4_f32(weight + i * 4 if inside else weight)
        put_four(xq, xs, xsum, xtotal, at + i, inside, v, w, scale)


def rmsnorm_quantize(xq, xs, xsum, xtotal, x, weight, eps, T, K, blocks, halves):
    grid_go()
    normalise(xq, xs, xsum, xtotal, x, x, False, weight, eps, K)


def add_rmsnorm_quantize(x, xq, xs, xsum, xtotal, y, weight, eps, T, K, blocks, halves):
    grid_go()
    normalise(xq, xs, xsum, xtotal, x, y, True, weight, eps, K)


@device
def scaled(out, x, y, adds, weight, eps, n):
    """A block's row of x, y added to it in place if it `adds`, normalised; n is any number."""
    at = i64(cuda.blockIdx.x) * n
    row = x + at * 4
    thread = i64(cuda.threadIdx.x)
    values, weights = kept(), kept()
    for i in range(KEPT):
        k = min(i * THREADS + thread, n - 1)
        weights[i] = load_f32(weight + k * 4)
    grid_wait()
    # All is read before anything is written: the other order would wait for memory many times.
    for i in range(KEPT):
        k = min(i * THREADS + thread, n - 1)
        values[i] = load_f32(row + k * 4)
        if adds:
            values[i] += load_f32(y + (at + k) * 4)
    total = f32(0.0)
    for i in range(KEPT):
        k = i * THREADS + thread
        if k < n:
            if adds:
                store_f32(row + k * 4, values[i])
            total += values[i] * values[i]
    for k in range(KEPT * THREADS + thread, n, THREADS):
        v = load_f32(row + k * 4)
        if adds:
            v += load_f32(y + (at + k) * 4)
            store_f32(row + k * 4, v)
        total += v * v
    scale = inverse_rms(total_of(total, warp_sums()), n, eps)
    for i in range(KEPT):
        k = i * THREADS + thread
        if k < n:
            store_f32(out + (at + k) * 4, values[i] * scale * weights[i])
    for k in range(KEPT * THREADS + thread, n, THREADS):
        v = load_f32(row + k * 4) * scale * load_f32(weight + k * 4)
        store_f32(out + (at + k) * 4, v)


def rmsnorm(out, x, weight, eps, rows, n):
    grid_go()
    scaled(out, x, x, False, weight, eps, n)


def add_rmsnorm(x, out, y, weight, eps, T, K):
    grid_go()
    scaled(out, x, y, True, weight, eps, K)
