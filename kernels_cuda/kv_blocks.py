"""Blocks of the KV cache as the tuned kernels have them, in all its types.

A block holds 64 tokens of one KV head. In f16 it is their components, token after token. In q8_0
and q4_0 it is first the quants, token after token, the bytes of llama.cpp's blocks of that name
one after the other, then the scales as halves, token after token; so a block has as many bytes as
in llama3jit.ops.kv_dtypes.
"""

from numba import cuda
from numba.cuda import types

from kernels_cuda.int8 import SMALLEST, larger
from kernels_cuda.ptx import (
    as_f32,
    as_u32,
    byte_to_f32,
    f32_to_half,
    half_to_f32,
    load_2,
    load_8,
    load_16,
    shuffle_xor,
    shuffle_xor_u32,
    signed_byte_to_f32,
    store_1,
    store_2,
    two_halves,
)

f32, i32, i64, u32 = types.float32, types.int32, types.int64, types.uint32
TOKENS = 64
INFINITY = f32(float("inf"))
device = cuda.jit(device=True)
signed = [signed_byte_to_f32[i] for i in range(4)]
plain = [byte_to_f32[i] for i in range(4)]
signed_0, signed_1, signed_2, signed_3 = signed
plain_0, plain_1, plain_2, plain_3 = plain


def block_bytes(kind, head_dim):
    """Bytes of a block."""
    return (
        TOKENS
        * {"f16": 2 * head_dim, "q8_0": head_dim * 34 // 32, "q4_0": head_dim * 18 // 32}[kind]
    )


@device
def eight_of_q8_0(a, b, scale):
    """Four registers of halves: the signed bytes of two, times a scale."""
    return (
        two_halves(signed_0(a) * scale, signed_1(a) * scale),
        two_halves(signed_2(a) * scale, signed_3(a) * scale),
        two_halves(signed_0(b) * scale, signed_1(b) * scale),
        two_halves(signed_2(b) * scale, signed_3(b) * scale),
    )


@device
def eight_of_q4_0(a, b, scale):
    """The same for bytes from 0 to 15, less 8."""
    less = f32(8.0)
    return (
        two_halves((plain_0(a) - less) * scale, (plain_1(a) - less) * scale),
        two_halves((plain_2(a) - less) * scale, (plain_3(a) - less) * scale),
        two_halves((plain_0(b) - less) * scale, (plain_1(b) - less) * scale),
        two_halves((plain_2(b) - less) * scale, (plain_3(b) - less) * scale),
    )


def reader(kind, head_dim):
    """The function from the address of a block, a token of it and a component, a multiple of 8, to
    that and the next seven components, as halves in four registers."""
    groups = head_dim // 32
    scales = TOKENS * (head_dim if kind == "q8_0" else head_dim // 2)

    @device
    def read_f16(block, token, c):
        return load_16(block + (token * head_dim + c) * 2)

    @device
    def scale_of(block, token, c):
        return half_to_f32(load_2(block + scales + (token * groups + (c >> 5)) * 2))

    @device
    def read_q8_0(block, token, c):
        w = load_8(block + token * head_dim + c)
        return eight_of_q8_0(w[0], w[1], scale_of(block, token, c))

    @device
    def read_q4_0(block, token, c):
        """Bytes 0 to 15 of a group have its components in the low halves, and 16 on in the
        high ones."""
        w = load_8(block + token * (head_dim // 2) + (c >> 5) * 16 + (c & 8))
        shift, low = u32((c & 16) >> 2), u32(0x0F0F0F0F)
        a, b = u32((w[0] >> shift) & low), u32((w[1] >> shift) & low)
        return eight_of_q4_0(a, b, scale_of(block, token, c))

    return {"f16": read_f16, "q8_0": read_q8_0, "q4_0": read_q4_0}[kind]


@device
def as_it_is(x):
    """x, with which nothing is contracted."""
    return as_f32(as_u32(x))


@device
def warp_furthest(magnitude):
    """The largest of a warp, or a NaN if one is."""
    for step in (1, 2, 4, 8, 16):
        magnitude = larger(magnitude, shuffle_xor(magnitude, u32(step)))
    return magnitude


@device
def inverse_of(scale):
    if abs(scale) >= SMALLEST and abs(scale) < INFINITY:
        return f32(1.0) / scale
    return f32(0.0)


@device
def write_q8_0(quants, scale_at, lane, x):
    """A group of 32 components, one for each lane; see llama3jit.ops.kv_dtypes."""
    scale = warp_furthest(abs(x)) / f32(127.0)
    inverse = inverse_of(scale)
    quant = i32(0)
    if inverse != f32(0.0):
        scaled = as_it_is(x * inverse)
        quant = i32(scaled)
        rest = scaled - f32(quant)
        if rest >= f32(0.5):
            quant += i32(1)
        elif rest <= f32(-0.5):
            quant -= i32(1)
    store_1(quants + lane, u32(quant))
    if lane == 0:
        store_2(scale_at, f32_to_half(scale))


@device
def write_q4_0(quants, scale_at, lane, x):
    """The same."""
    magnitude = abs(x)
    largest = warp_furthest(magnitude)
    holders = cuda.ballot_sync(0xFFFFFFFF, magnitude == largest or magnitude != magnitude)
    furthest = cuda.shfl_sync(0xFFFFFFFF, x, cuda.ffs(holders) - 1)
    scale = furthest / f32(-8.0)
    inverse = inverse_of(scale)
    quant = i32(8)
    if inverse != f32(0.0):
        quant = min(i32(15), i32(as_it_is(x * inverse) + f32(8.5)))
    quant = u32(quant)
    other = shuffle_xor_u32(quant, u32(16))
    if lane < 16:
        store_1(quants + lane, u32(quant | (other << u32(4))))
    if lane == 0:
        store_2(scale_at, f32_to_half(scale))
