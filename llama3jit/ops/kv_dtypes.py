"""What a KV cache is made of: how an op reads and writes it, in each of its types.

A block holds `tokens` tokens of one KV head, in lines of elements. In f16 and f32 keys are
[head_dim, tokens], the token running fastest, so that one vector register holds the same component
of 16 tokens and a score needs no horizontal sum; values are [tokens, head_dim].

In q8_0 and q4_0 the 32 components of a token that share a scale are the bytes of llama.cpp's block
of that name: its 32 or 16 quants, then its scale. A block of the cache has for each 32 components
first the quants of all its tokens, then their scales, two bytes a token. Of keys, four bytes of a
token lie beside the same four of the next token; of values, all bytes of a token lie together. So a
block has 34 or 18 lines of `tokens` bytes for 32 components.
"""

from __future__ import annotations

import numpy as np

from llama3jit.ops.bits import float_to_half, half_to_float
from llama3jit.ops.quantize import INFINITY, SMALLEST

GROUP = 32  # components that share a scale

# Quantised type -> bytes that hold the quants of a group.
QUANT_BYTES = {"q8_0": 32, "q4_0": 16}
SCALE_BYTES = 2


def half_key(cache, block, g, at, d):
    return half_to_float(cache[block, g, d, at])


def half_value(cache, block, g, at, d):
    return half_to_float(cache[block, g, at, d])


def float_key(cache, block, g, at, d):
    return cache[block, g, d, at]


def float_value(cache, block, g, at, d):
    return cache[block, g, at, d]


def write_half_key(cache, block, g, at, x, t):
    for d in range(x.shape[2]):
        cache[block, g, d, at] = float_to_half(x[t, g, d])


def write_half_value(cache, block, g, at, x, t):
    for d in range(x.shape[2]):
        cache[block, g, at, d] = float_to_half(x[t, g, d])


def write_float_key(cache, block, g, at, x, t):
    for d in range(x.shape[2]):
        cache[block, g, d, at] = x[t, g, d]


def write_float_value(cache, block, g, at, x, t):
    for d in range(x.shape[2]):
        cache[block, g, at, d] = x[t, g, d]


def key_offset(tokens, at, i, n):
    """Where byte i of the n of token `at` lies among the quants of its group."""
    return (i // 4 * tokens + at) * 4 + i % 4


def value_offset(tokens, at, i, n):
    """As key_offset, of values."""
    return at * n + i


def byte_in(cache, block, g, line, offset):
    tokens = cache.shape[3]
    return np.int32(cache[block, g, line + offset // tokens, offset % tokens])


def put_byte(cache, block, g, line, offset, byte):
    tokens = cache.shape[3]
    cache[block, g, line + offset // tokens, offset % tokens] = np.uint8(byte & 255)


def scale_in(cache, block, g, line, at):
    low = byte_in(cache, block, g, line, 2 * at)
    return half_to_float(np.uint16(low | byte_in(cache, block, g, line, 2 * at + 1) << 8))


def put_scale(cache, block, g, line, at, scale):
    bits = np.int32(float_to_half(scale))
    put_byte(cache, block, g, line, 2 * at, bits)
    put_byte(cache, block, g, line, 2 * at + 1, bits >> 8)


def read_q8_0(cache, block, g, at, d, offset):
    line = d // 32 * 34
    byte = byte_in(cache, block, g, line, offset(cache.shape[3], at, d % 32, 32))
    return scale_in(cache, block, g, line + 32, at) * np.float32((byte ^ 128) - 128)


def read_q4_0(cache, block, g, at, d, offset):
    """The low half of byte i is component i, the high one component i + 16."""
    line = d // 32 * 18
    byte = byte_in(cache, block, g, line, offset(cache.shape[3], at, d % 16, 16))
    quant = (byte >> d % 32 // 16 * 4 & 15) - 8
    return scale_in(cache, block, g, line + 16, at) * np.float32(quant)


def q8_0_key(cache, block, g, at, d):
    return read_q8_0(cache, block, g, at, d, key_offset)


def q8_0_value(cache, block, g, at, d):
    return read_q8_0(cache, block, g, at, d, value_offset)


def q4_0_key(cache, block, g, at, d):
    return read_q4_0(cache, block, g, at, d, key_offset)


def q4_0_value(cache, block, g, at, d):
    return read_q4_0(cache, block, g, at, d, value_offset)


def furthest(x, t, g, first):
    """Of 32 components the first that is furthest from 0; NaN is further than any number."""
    found = x[t, g, first]
    for d in range(first + 1, first + 32):
        magnitude = abs(x[t, g, d])
        if magnitude > abs(found) or (magnitude != magnitude and found == found):
            found = x[t, g, d]
    return found


def inverse_of(scale):
    """1 / scale, or 0 where that is no number that a quant could be made with."""
    if abs(scale) >= SMALLEST and abs(scale) < INFINITY:
        return np.float32(1.0) / scale
    return np.float32(0.0)


def nearest_away(x):
    """The nearest whole number, halves away from 0."""
    whole = np.int32(x)
    rest = x - np.float32(whole)
    if rest >= np.float32(0.5):
        whole += np.int32(1)
    elif rest <= np.float32(-0.5):
        whole -= np.int32(1)
    return whole


def write_q8_0(cache, block, g, at, x, t, offset):
    """Of each 32 components the scale max |x| / 127 and the quants x / scale."""
    for b in range(x.shape[2] // 32):
        scale = abs(furthest(x, t, g, 32 * b)) / np.float32(127.0)
        inverse = inverse_of(scale)
        put_scale(cache, block, g, 34 * b + 32, at, scale)
        for i in range(32):
            quant = np.int32(0)
            if inverse != np.float32(0.0):
                quant = nearest_away(x[t, g, 32 * b + i] * inverse)
            put_byte(cache, block, g, 34 * b, offset(cache.shape[3], at, i, 32), quant)


def nibble(x, inverse):
    if inverse == np.float32(0.0):
        return np.int32(8)
    return min(np.int32(15), np.int32(x * inverse + np.float32(8.5)))


def write_q4_0(cache, block, g, at, x, t, offset):
    """Of each 32 components the scale x / -8 of the furthest from 0, and x / scale + 8."""
    for b in range(x.shape[2] // 32):
        scale = furthest(x, t, g, 32 * b) / np.float32(-8.0)
        inverse = inverse_of(scale)
        put_scale(cache, block, g, 18 * b + 16, at, scale)
        for i in range(16):
            low = nibble(x[t, g, 32 * b + i], inverse)
            high = nibble(x[t, g, 32 * b + i + 16], inverse)
            place = offset(cache.shape[3], at, i, 16)
            put_byte(cache, block, g, 18 * b, place, low | high << 4)


def write_q8_0_key(cache, block, g, at, x, t):
    write_q8_0(cache, block, g, at, x, t, key_offset)


def write_q8_0_value(cache, block, g, at, x, t):
    write_q8_0(cache, block, g, at, x, t, value_offset)


def write_q4_0_key(cache, block, g, at, x, t):
    write_q4_0(cache, block, g, at, x, t, key_offset)


def write_q4_0_value(cache, block, g, at, x, t):
    write_q4_0(cache, block, g, at, x, t, value_offset)


# `kv` is the dtype that a cache has in memory. read_key and read_value take (cache, block, KV head,
# token of the block, component), write_key and write_value the same with (x, t) in place of the
# component: the head of x f32[T, heads, head_dim] at token t, all its components.
KV_DTYPES = {
    "f16": {
        "kv": "u16",
        "read_key": half_key,
        "read_value": half_value,
        "write_key": write_half_key,
        "write_value": write_half_value,
    },
    "f32": {
        "kv": "f32",
        "read_key": float_key,
        "read_value": float_value,
        "write_key": write_float_key,
        "write_value": write_float_value,
    },
    "q8_0": {
        "kv": "u8",
        "read_key": q8_0_key,
        "read_value": q8_0_value,
        "write_key": write_q8_0_key,
        "write_value": write_q8_0_value,
    },
    "q4_0": {
        "kv": "u8",
        "read_key": q4_0_key,
        "read_value": q4_0_value,
        "write_key": write_q4_0_key,
        "write_value": write_q4_0_value,
    },
}


def shapes_of(variant, head_dim, tokens):
    """The lines and the elements of a line that a block of keys and one of values have."""
    if variant in QUANT_BYTES:
        lines = head_dim // GROUP * (QUANT_BYTES[variant] + SCALE_BYTES)
        return (lines, tokens), (lines, tokens)
    return (head_dim, tokens), (tokens, head_dim)
