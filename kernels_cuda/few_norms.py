"""A residual sum and its normalisation in front of a product with one token: each block of threads
works them out for itself, and the first one stores the sum. The numbers are those of `norms`."""

from numba import cuda
from numba.cuda import types

from kernels_cuda import few
from kernels_cuda.int8 import put_block
from kernels_cuda.memory import shared
from kernels_cuda.norms import inverse_rms
from kernels_cuda.ptx import load_4_f32, put_f32, store_4_f32
from kernels_cuda.reductions import block_sum

f32, u32 = types.float32, types.uint32
THREADS = 32 * few.WARPS  # as many as a block of `norms` has, so that sums are in the same order
warp_sums = shared(few.WARPS, f32)
total_of = block_sum(few.WARPS)
device = cuda.jit(device=True)


@device
def gains(gain, K, thread):
    """A thread's first eight weights."""
    one = thread * 4
    two = one + 4 * THREADS
    w = load_4_f32(gain + one * 4 if one < K else gain)
    u = load_4_f32(gain + two * 4 if two < K else gain)
    return w + u


@device
def four(x, y, at, K):
    """Four values from `at` on of x + y; zeros behind the end."""
    if at >= K:
        return f32(0.0), f32(0.0), f32(0.0), f32(0.0)
    v, w = load_4_f32(x + at * 4), load_4_f32(y + at * 4)
    return v[0] + w[0], v[1] + w[1], v[2] + w[2], v[3] + w[3]


@device
def squares(v):
    return v[0] * v[0] + v[1] * v[1] + v[2] * v[2] + v[3] * v[3]


@device
def keep(total, at, K, v):
    """The first block of threads stores the sum."""
    if cuda.blockIdx.x == 0 and at < K:
        store_4_f32(total + at * 4, v[0], v[1], v[2], v[3])


@device
def normalised(early, to, scales, totals, total, x, y, gain, eps, T, K, blocks, n_blocks, thread):
    """Put int8 of rmsnorm(x + y) to shared memory, and x + y to `total`, which is neither; K is a
    multiple of 32. `totals` is 0 where nothing reads them."""
    one = thread * 4
    two = one + 4 * THREADS
    v, r = four(x, y, one, K), four(x, y, two, K)
    keep(total, one, K, v)
    keep(total, two, K, r)
    of_thread = squares(v)
    of_thread += squares(r)
    for at in range(two + 4 * THREADS, K, 4 * THREADS):
        more = four(x, y, at, K)
        keep(total, at, K, more)
        of_thread += squares(more)
    s = inverse_rms(total_of(of_thread, warp_sums()), K, eps)
    w = early
    put_block(
        to, scales, totals, one, one < K,
        v[0] * s * w[0], v[1] * s * w[1], v[2] * s * w[2], v[3] * s * w[3],
    )  # fmt: skip
    put_block(
        to, scales, totals, two, two < K,
        r[0] * s * w[4], r[1] * s * w[5], r[2] * s * w[6], r[3] * s * w[7],
    )  # fmt: skip
    for start in range(8 * THREADS, K, 4 * THREADS):
        at = start + one
        v = four(x, y, at, K)
        w = load_4_f32(gain + at * 4 if at < K else gain)
        put_block(
            to, scales, totals, at, at < K,
            v[0] * s * w[0], v[1] * s * w[1], v[2] * s * w[2], v[3] * s * w[3],
        )  # fmt: skip
    # Past the last column weights are zeros; a scale there must not be a NaN.
    for b in range(n_blocks + thread, blocks, THREADS):
        put_f32(u32(scales + b * 4), f32(0.0))
        if totals != 0:
            put_f32(u32(totals + b * 4), f32(0.0))
