"""Nibbles that number the levels of a table.

Nibbles lie as those of Q4_0 in IQ4_NL and MXFP4, in each part of 32 values of IQ4_XS, and in each
part of 16 of NVFP4, there 8 apart. A 4-bit float has a sign bit, 2 exponent bits and a mantissa bit
(OCP Microscaling Formats 1.0); tables hold twice its value, an integer, and scales are halved. A
scale of NVFP4 is a float of 4 exponent bits and 3 mantissa bits, for 16 values.
"""

from __future__ import annotations

import numpy as np

from llama3jit.ops.bits import bits_to_float
from llama3jit.ops.blocks import byte_at, field, half_at, halves
from llama3jit.ops.blocks_32 import nibble, nibbles
from llama3jit.ops.k_quants import PART_OF_8, VALUE, spread

NONLINEAR = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)
# +0 for both zeros, as the reference code has it.
FLOAT_4 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)


def iq4_nl(weight, n, k):
    """d, 16 bytes of nibbles: d * level(q)"""
    at = k // 32 * 18
    return half_at(weight, n, at) * NONLINEAR[nibble(weight, n, at + 2, k % 32)]


def iq4_nl_values(blocks):
    return halves(blocks, 0) * NONLINEAR[nibbles(blocks, 2)]


def iq4_xs(weight, n, k):
    """d, 2 bytes of upper bits of s, 4 of lower, 128 of nibbles: d * (s - 32) * level(q)"""
    at, i = k // 256 * 136, k % 256
    part = i // 32
    low = byte_at(weight, n, at + 4 + part // 2) >> part % 2 * 4 & 15
    high = byte_at(weight, n, at + 2 + part // 4) >> part % 4 * 2 & 3
    step = half_at(weight, n, at) * np.float32((low | high << 4) - 32)
    return step * NONLINEAR[nibble(weight, n, at + 8 + 16 * part, i % 32)]


def iq4_xs_values(blocks):
    low = field(blocks, 4 + PART_OF_8 // 2, PART_OF_8 % 2 * 4, 15)
    high = field(blocks, 2 + PART_OF_8 // 4, PART_OF_8 % 4 * 2, 3)
    step = halves(blocks, 0) * ((low | high << 4).astype(np.float32) - np.float32(32))
    q = field(blocks, 8 + VALUE // 32 * 16 + VALUE % 16, VALUE // 16 % 2 * 4, 15)
    return spread(step) * NONLINEAR[q]


def mxfp4(weight, n, k):
    """a byte e, 16 bytes of nibbles: 2^(e - 127) * float4(q)"""
    at = k // 32 * 17
    e = byte_at(weight, n, at)
    # 2^(e - 128); below the least normal number the mantissa's own bits say it.
    bits = 0x00200000 << e if e < 2 else (e - 1) << 23
    return bits_to_float(np.int32(bits)) * FLOAT_4[nibble(weight, n, at + 1, k % 32)]


def mxfp4_values(blocks):
    return (
        np.ldexp(np.float32(1), blocks[:, :1].astype(np.int32) - 128) * FLOAT_4[nibbles(blocks, 1)]
    )


def nvfp4(weight, n, k):
    """4 bytes of s, 32 of nibbles: s * float4(q)"""
    at, i = k // 64 * 36, k % 64
    e = byte_at(weight, n, at + i // 16)
    exponent, mantissa = e >> 3 & 15, e & 7
    scale = np.float32(mantissa) * np.float32(2.0**-10)
    if exponent > 0:
        scale = bits_to_float(np.int32((exponent + 119) << 23 | mantissa << 20))
    if e == 127:  # what would be infinite
        scale = np.float32(0.0)
    q = byte_at(weight, n, at + 4 + i // 16 * 8 + i % 8) >> i // 8 % 2 * 4 & 15
    return scale * FLOAT_4[q]


def nvfp4_values(blocks):
    exponent, mantissa = (blocks[:, :4] >> 3 & 15).astype(np.int32), blocks[:, :4] & 7
    normal = np.ldexp((mantissa + 8).astype(np.float32), exponent - 11)
    scale = np.where(exponent > 0, normal, mantissa * np.float32(2.0**-10))
    scale = np.where(blocks[:, :4] == 127, np.float32(0), scale)
    i = np.arange(64)
    q = field(blocks, 4 + i // 16 * 8 + i % 8, i // 8 % 2 * 4, 15)
    return np.repeat(scale, 16, axis=1) * FLOAT_4[q]


# See llama3jit.ops.dequantise.
ROWS = {
    "iq4_nl": (18, iq4_nl, iq4_nl_values),
    "iq4_xs": (136, iq4_xs, iq4_xs_values),
    "mxfp4": (17, mxfp4, mxfp4_values),
    "nvfp4": (36, nvfp4, nvfp4_values),
}
