"""Activations to int8 by blocks of 32, eight lanes to a block and four values to a lane; see
llama3jit.ops.quantize."""

from numba import cuda
from numba.cuda import types

from kernels_cuda.ptx import (
    bytes_of,
    dp4a,
    i32_to_f32,
    rint_i32,
    shuffle_xor,
    shuffle_xor_u32,
    store_4,
    store_f32,
)

f32, u32 = types.float32, types.uint32
SMALLEST = f32(2.0**-126)
ONES = u32(0x01010101)
device = cuda.jit(device=True)


@device
def larger(a, b):
    """The larger one, or a NaN if one is."""
    return b if b > a or b != b else a


@device
def four_bytes(a, b, c, d):
    """The low bytes of four registers in one."""
    return bytes_of(bytes_of(a, b, u32(0x0040)), bytes_of(c, d, u32(0x0040)), u32(0x5410))


@device
def store_block(xq, xs, xsum, xtotal, at, inside, a, b, c, d):
    """Values `at` to `at` + 3 of the rows taken as one, by each of eight neighbouring lanes; by all
    lanes of a warp at once, of which those inside store."""
    largest = larger(larger(abs(a), abs(b)), larger(abs(c), abs(d)))
    largest = larger(largest, shuffle_xor(largest, u32(1)))
    largest = larger(largest, shuffle_xor(largest, u32(2)))
    largest = larger(largest, shuffle_xor(largest, u32(4)))
    scale = largest / f32(127.0)
    inverse = f32(0.0)
    if scale >= SMALLEST and scale < f32(float("inf")):
        inverse = f32(1.0) / scale
    q = u32(0)
    if inverse > f32(0.0):
        q = four_bytes(
            rint_i32(a * inverse),
            rint_i32(b * inverse),
            rint_i32(c * inverse),
            rint_i32(d * inverse),
        )
    if inside:
        store_4(xq + at, q)
    total = dp4a(q, ONES, u32(0))
    total = total + shuffle_xor_u32(total, u32(1))
    total = u32(total + shuffle_xor_u32(total, u32(2)))
    block = at >> 5
    if inside and at & 15 == 0:
        store_4(xsum + (at >> 4) * 4, total)
    total = u32(total + shuffle_xor_u32(total, u32(4)))
    if inside and at & 31 == 0:
        store_f32(xs + block * 4, scale)
        store_f32(xtotal + block * 4, scale * i32_to_f32(total))
