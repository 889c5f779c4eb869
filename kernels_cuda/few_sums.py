"""Sums of products with up to 8 tokens on sm_90, as `mma` leaves them to the lanes of a warp: rows
l / 4 and 8 more, tokens 2 (l % 4) and the next. The warps of a block add theirs up by way of shared
memory; see `few`."""

from numba import cuda
from numba.cuda import types

from kernels_cuda import few
from kernels_cuda.ptx import put_f32, shared_f32

f32, u32 = types.float32, types.uint32
ROWS, PAIRS = few.ROWS, few.WARPS // 2
device = cuda.jit(device=True)


@device
def put_one(part, lane, low, high):
    """One token's sums to shared memory, by a lane of each four."""
    if lane & 3 == 0:
        put_f32(part, low)
        put_f32(u32(part + 32), high)


@device
def put_eight(part, lane, sums):
    """Those of 8 tokens, rows of 16 sums each."""
    put_f32(part, sums[0])
    put_f32(u32(part + ROWS * 4), sums[1])
    put_f32(u32(part + 32), sums[2])
    put_f32(u32(part + ROWS * 4 + 32), sums[3])


@device
def total_of(at, outputs):
    """One output's sum over all warps, which lie so many outputs apart: those of warps w and w + 8
    first."""
    value = f32(0.0)
    for warp in range(PAIRS):
        first = u32(at + warp * (outputs * 4))
        value += shared_f32(first) + shared_f32(u32(first + PAIRS * outputs * 4))
    return value
