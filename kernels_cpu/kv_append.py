"""Keys and values into a quantised cache, 32 components in two registers."""

from __future__ import annotations

import numpy as np

from kernels_cpu.kv_plain import BLOCK_TOKENS, LANES
from kernels_cpu.memory import load_u32, store_u16, store_u32
from kernels_cpu.simd import add, float_at, load_f32, mul, splat_f32
from kernels_cpu.simd_int import (
    first_equal,
    largest_of_i32,
    magnitude_bits,
    maximum_i32,
    minimum_i32,
    or_shifted,
    round_away_to_i32,
    splat_i32,
    store_i8,
    truncate_to_i32,
)
from kernels_cpu.stack import stack_u8
from llama3jit.ops.bits import bits_to_float, float_to_half
from llama3jit.ops.kv_dtypes import GROUP, inverse_of
from llama3jit.ops.op import AS_WRITTEN, op

PIECE = 4  # bytes of a token that lie together among those of keys


def quantise_q8_0(quants, x, at):
    """The scale of the 32 numbers of x from `at` on; their quants to `quants`."""
    first = load_f32(x, at)
    second = load_f32(x, at + LANES)
    # Found among bits, so that a NaN is the largest and makes the scale NaN.
    largest = largest_of_i32(maximum_i32(magnitude_bits(first), magnitude_bits(second)))
    scale = bits_to_float(largest) / np.float32(127.0)
    inverse = inverse_of(scale)
    zero = splat_i32(np.int32(0))
    if inverse == np.float32(0.0):
        store_i8(quants, 0, zero)
        store_i8(quants, LANES, zero)
    else:
        store_i8(quants, 0, round_away_to_i32(mul(first, splat_f32(inverse))))
        store_i8(quants, LANES, round_away_to_i32(mul(second, splat_f32(inverse))))
    return scale


def nibbles(x, inverse):
    shifted = add(mul(x, splat_f32(inverse)), splat_f32(np.float32(8.5)))
    return minimum_i32(truncate_to_i32(shifted), splat_i32(np.int32(15)))


def quantise_q4_0(quants, x, at):
    """As quantise_q8_0."""
    first = load_f32(x, at)
    second = load_f32(x, at + LANES)
    largest = largest_of_i32(maximum_i32(magnitude_bits(first), magnitude_bits(second)))
    place = first_equal(magnitude_bits(first), largest)
    if place == LANES:
        place += first_equal(magnitude_bits(second), largest)
    scale = float_at(x, at + place) / np.float32(-8.0)
    inverse = inverse_of(scale)
    if inverse == np.float32(0.0):
        store_i8(quants, 0, splat_i32(np.int32(0x88)))
    else:
        store_i8(quants, 0, or_shifted(nibbles(first, inverse), nibbles(second, inverse), 4))
    return scale


# QUANTS is the bytes of the quants of a group.
QUANTISED = {
    "q8_0": {"kv": "u8", "quantise": quantise_q8_0, "QUANTS": 32},
    "q4_0": {"kv": "u8", "quantise": quantise_q4_0, "QUANTS": 16},
}


def put_head(cache, base, at, x, first, head_dim, piece_stride, token_stride):
    """The head of x from element `first` on, as token `at` of the block at byte `base`; there the
    pieces of a token lie `piece_stride` bytes apart, first pieces of tokens `token_stride`."""
    quants = stack_u8(GROUP)
    for d in range(0, head_dim, GROUP):
        scale = quantise(quants, x, first + d)
        for i in range(QUANTS // PIECE):
            place = base + at * token_stride + i * piece_stride
            store_u32(cache, place, load_u32(quants, i * PIECE))
        base += QUANTS * BLOCK_TOKENS
        store_u16(cache, base + 2 * at, np.int64(float_to_half(scale)))
        base += 2 * BLOCK_TOKENS


@op(variants=QUANTISED, fastmath=AS_WRITTEN, outputs=2)
def kv_append(
    k_cache: kv[n_blocks, heads, k_lines, block_tokens],
    v_cache: kv[n_blocks, heads, v_lines, v_line],
    k: f32[T, heads, head_dim],
    v: f32[T, heads, head_dim],
    positions: i32[T],
    seq_of: i32[T],
    block_tables: i32[S, B],
    items: T * heads,
):
    """As llama3jit.ops.kv_append.kv_append; an item is one head of a token."""
    heads = k.shape[1]
    head_dim = k.shape[2]
    size = k_cache.shape[2] * k_cache.shape[3]
    for item in items:
        t = item // heads
        h = item % heads
        block = block_tables[seq_of[t], positions[t] // BLOCK_TOKENS]
        at = positions[t] % BLOCK_TOKENS
        base = (block * heads + h) * size
        put_head(k_cache, base, at, k, item * head_dim, head_dim, PIECE * BLOCK_TOKENS, PIECE)
        put_head(v_cache, base, at, v, item * head_dim, head_dim, PIECE, QUANTS)
