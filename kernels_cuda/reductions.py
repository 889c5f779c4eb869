"""Sums and maxima over the lanes of a warp, and over the warps of a block."""

from numba import cuda
from numba.cuda import types

from kernels_cuda.ptx import max_f32, shuffle_xor

u32 = types.uint32
device = cuda.jit(device=True)


def lane_sum(width):
    """The function from a value of each lane to the sum over `width` neighbours, a power of two,
    in every one of them."""

    @device
    def reduce(x):
        step = width // 2
        while step > 0:
            x += shuffle_xor(x, u32(step))
            step //= 2
        return x

    return reduce


def lane_max(width):
    """The same for the largest; a NaN is passed over."""

    @device
    def reduce(x):
        step = width // 2
        while step > 0:
            x = max_f32(x, shuffle_xor(x, u32(step)))
            step //= 2
        return x

    return reduce


warp_sum = lane_sum(32)
warp_max = lane_max(32)


def block_sum(warps):
    """The function from a value of each thread and a shared f32[warps] to the sum over a block of
    32 * warps threads, in every thread; the sum's order is fixed."""

    @device
    def reduce(x, shared):
        thread = cuda.threadIdx.x
        x = warp_sum(x)
        if thread & 31 == 0:
            shared[thread >> 5] = x
        cuda.syncthreads()
        total = types.float32(0.0)
        for w in range(warps):
            total += shared[w]
        return total

    return reduce
