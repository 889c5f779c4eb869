"""IQ formats: blocks of 256 values, 8 or in IQ3 4 at a time a vector of a grid
(llama3jit.ops.grids), in IQ2 and IQ3 with signs; the scale s is that of a part of 32 values, in
IQ1_M, IQ2_XS and IQ2_S of 16.

Signs have a bit a value, or 7 bits for 8 values, the eighth making the number of minuses even. A
word of upper bits has 3 for each of 4 indices, then 3 of s, then the sign of the eighth; in
IQ1_M a nibble for each index has 3 and that sign, a word has 3 of s for each of 4 parts of 16, and
the top nibbles of the words are the f16 d. Words of signs have 4 times 7 bits, then 4 of s.
"""

from __future__ import annotations

import numpy as np

from llama3jit.ops.bits import half_to_float
from llama3jit.ops.blocks import byte_at, field, half_at, halves, word_at
from llama3jit.ops.grids import IQ1, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS
from llama3jit.ops.k_quants import PART_OF_8, PART_OF_16, spread

# The levels of the digits of a grid's words.
LEVELS_1 = np.array([-1, 0, 1, 0], np.float32)
LEVELS_2 = np.array([8, 25, 43, 0], np.float32)
LEVELS_3_XXS = np.array([4, 12, 20, 28, 36, 44, 52, 62], np.float32)
DELTA = np.float32(0.125)
QUARTER = np.float32(0.25)
HALF = np.float32(0.5)

GROUP = np.arange(32)  # of 8 values
QUAD = np.arange(64)  # of 4 values


def words_at(blocks, at, count):
    """`count` words of every block from byte `at` on, as int32."""
    return blocks[:, at : at + 2 * count].copy().view(np.uint16).astype(np.int32)


def nibble_scale(weight, n, at, part):
    """d's factor s + 1/2 of the numbered nibble behind `at`."""
    return np.float32(byte_at(weight, n, at + part // 2) >> part % 2 * 4 & 15) + HALF


def nibble_scales(blocks, at, parts):
    return field(blocks, at + parts // 2, parts % 2 * 4, 15) + HALF


def signed(value, signs, j):
    """The value with bit j of `signs`."""
    return -value if signs >> j & 1 else value


def eight_signs(seven):
    """7 bits of signs and the one that makes them even."""
    parity = seven ^ seven >> 4
    parity = parity ^ parity >> 2
    return seven | ((parity ^ parity >> 1) & 1) << 7


def digits(words, length):
    """Digits of a grid's words u16[n_blocks, n_words]: u16[n_blocks, 256]."""
    bits = 16 // length
    shifts = (np.arange(length) * bits).astype(np.uint16)
    every = words[:, :, None] >> shifts & (1 << bits) - 1
    return every.reshape(len(words), -1)


def signs_of(bytes_of_groups):
    """1 or -1 for each bit of bytes [n_blocks, 32]."""
    minus = bytes_of_groups[:, :, None] >> np.arange(8) & 1
    return (1 - 2 * minus).reshape(len(minus), -1).astype(np.float32)


def iq1_s(weight, n, k):
    """d, 32 bytes of index, 8 words of upper bits, s and sign: d * (2 s + 1) * (grid ± 1/8)"""
    at, i = k // 256 * 50, k % 256
    word = word_at(weight, n, at + 34 + i // 32 * 2)
    index = byte_at(weight, n, at + 2 + i // 8) | (word >> i // 8 % 4 * 3 & 7) << 8
    level = LEVELS_1[IQ1[index] >> i % 8 * 2 & 3] + signed(DELTA, word, 15)
    return half_at(weight, n, at) * np.float32(2 * (word >> 12 & 7) + 1) * level


def iq1_s_values(blocks):
    words = words_at(blocks, 34, 8)
    index = blocks[:, 2:34] | (words[:, GROUP // 4] >> GROUP % 4 * 3 & 7) << 8
    step = halves(blocks, 0) * (2 * (words >> 12 & 7) + 1).astype(np.float32)
    delta = np.where(words >> 15, -DELTA, DELTA)
    return spread(step) * (LEVELS_1[digits(IQ1[index], 8)] + spread(delta))


def iq1_m(weight, n, k):
    """32 bytes of index, 16 of upper bits and signs, 4 words of s and d: as IQ1_S"""
    at, i = k // 256 * 56, k % 256
    d = byte_at(weight, n, at + 49) >> 4 | byte_at(weight, n, at + 51) & 0xF0
    d |= (byte_at(weight, n, at + 53) >> 4 | byte_at(weight, n, at + 55) & 0xF0) << 8
    s = word_at(weight, n, at + 48 + i // 64 * 2) >> i // 16 % 4 * 3 & 7
    upper = byte_at(weight, n, at + 32 + i // 16) >> i // 8 % 2 * 4
    index = byte_at(weight, n, at + i // 8) | (upper & 7) << 8
    level = LEVELS_1[IQ1[index] >> i % 8 * 2 & 3] + signed(DELTA, upper, 3)
    return half_to_float(np.uint16(d)) * np.float32(2 * s + 1) * level


def iq1_m_values(blocks):
    words = words_at(blocks, 48, 4)
    d = (words >> 12 << np.arange(4) * 4).sum(axis=1, keepdims=True)
    d = d.astype(np.uint16).view(np.float16).astype(np.float32)
    s = words[:, PART_OF_16 // 4] >> PART_OF_16 % 4 * 3 & 7
    upper = field(blocks, 32 + GROUP // 2, GROUP % 2 * 4, 15).astype(np.int32)
    level = LEVELS_1[digits(IQ1[blocks[:, :32] | (upper & 7) << 8], 8)]
    delta = np.where(upper >> 3, -DELTA, DELTA)
    return spread(d * (2 * s + 1).astype(np.float32)) * (level + spread(delta))


def signs_and_scale(weight, n, at, group):
    """(signs of the numbered group of 4, s + 1/2), from their part's word of 32 bits at `at`."""
    low, high = word_at(weight, n, at), word_at(weight, n, at + 2)
    seven = (low | (high & 0x0FFF) << 16) >> 7 * group & 127
    return eight_signs(seven), np.float32(high >> 12) + HALF


def all_signs_and_scales(words):
    """(signs of every value, s + 1/2 of every part), from words u32[n_blocks, 8]."""
    seven = words[:, GROUP // 4] >> (GROUP % 4 * 7).astype(np.uint32) & 127
    return signs_of(eight_signs(seven)), (words >> 28).astype(np.float32) + HALF


def iq2_xxs(weight, n, k):
    """d, 8 times 4 bytes of index and 4 of signs and s: d * (2 s + 1) / 8 * ±grid"""
    at, i = k // 256 * 66, k % 256
    part, group = at + 2 + i // 32 * 8, i // 8 % 4
    signs, scale = signs_and_scale(weight, n, part + 4, group)
    level = LEVELS_2[IQ2_XXS[weight[n, part + group]] >> i % 8 * 2 & 3]
    return half_at(weight, n, at) * scale * QUARTER * signed(level, signs, i % 8)


def iq2_xxs_values(blocks):
    pairs = blocks[:, 2:].copy().view(np.uint32).reshape(-1, 8, 2)
    signs, scales = all_signs_and_scales(pairs[:, :, 1])
    index = np.ascontiguousarray(pairs[:, :, 0]).view(np.uint8)
    return (
        spread(halves(blocks, 0) * scales * QUARTER) * LEVELS_2[digits(IQ2_XXS[index], 8)] * signs
    )


def iq2_xs(weight, n, k):
    """d, 32 words of index and signs, 8 bytes of s: d * (2 s + 1) / 8 * ±grid"""
    at, i = k // 256 * 74, k % 256
    word = word_at(weight, n, at + 2 + i // 8 * 2)
    step = half_at(weight, n, at) * nibble_scale(weight, n, at + 66, i // 16) * QUARTER
    level = LEVELS_2[IQ2_XS[word & 511] >> i % 8 * 2 & 3]
    return step * signed(level, eight_signs(word >> 9), i % 8)


def iq2_xs_values(blocks):
    words = words_at(blocks, 2, 32)
    step = halves(blocks, 0) * nibble_scales(blocks, 66, PART_OF_16) * QUARTER
    level = LEVELS_2[digits(IQ2_XS[words & 511], 8)]
    return spread(step) * level * signs_of(eight_signs(words >> 9))


def iq2_s(weight, n, k):
    """d, 32 bytes of index, 32 of signs, 8 of upper bits, 8 of s: d * (2 s + 1) / 8 * ±grid"""
    at, i = k // 256 * 82, k % 256
    upper = byte_at(weight, n, at + 66 + i // 32) >> i // 8 % 4 * 2 & 3
    step = half_at(weight, n, at) * nibble_scale(weight, n, at + 74, i // 16) * QUARTER
    index = byte_at(weight, n, at + 2 + i // 8) | upper << 8
    level = LEVELS_2[IQ2_S[index] >> i % 8 * 2 & 3]
    return step * signed(level, byte_at(weight, n, at + 34 + i // 8), i % 8)


def iq2_s_values(blocks):
    upper = field(blocks, 66 + GROUP // 4, GROUP % 4 * 2, 3).astype(np.int32)
    step = halves(blocks, 0) * nibble_scales(blocks, 74, PART_OF_16) * QUARTER
    level = LEVELS_2[digits(IQ2_S[blocks[:, 2:34] | upper << 8], 8)]
    return spread(step) * level * signs_of(blocks[:, 34:66])


def iq3_xxs(weight, n, k):
    """d, 64 bytes of index, 8 times 4 of signs and s: d * (2 s + 1) / 4 * ±grid"""
    at, i = k // 256 * 98, k % 256
    signs, scale = signs_and_scale(weight, n, at + 66 + i // 32 * 4, i // 8 % 4)
    level = LEVELS_3_XXS[IQ3_XXS[weight[n, at + 2 + i // 4]] >> i % 4 * 4 & 7]
    return half_at(weight, n, at) * scale * HALF * signed(level, signs, i % 8)


def iq3_xxs_values(blocks):
    signs, scales = all_signs_and_scales(blocks[:, 66:].copy().view(np.uint32))
    level = LEVELS_3_XXS[digits(IQ3_XXS[blocks[:, 2:66]], 4)]
    return spread(halves(blocks, 0) * scales * HALF) * level * signs


def iq3_s(weight, n, k):
    """d, 64 bytes of index, 8 of upper bits, 32 of signs, 4 of s: d * (2 s + 1) * ±grid"""
    at, i = k // 256 * 110, k % 256
    upper = byte_at(weight, n, at + 66 + i // 32) >> i // 4 % 8 & 1
    index = byte_at(weight, n, at + 2 + i // 4) | upper << 8
    level = np.float32(2 * (IQ3_S[index] >> i % 4 * 4 & 7) + 1)
    step = half_at(weight, n, at) * (nibble_scale(weight, n, at + 106, i // 32) * np.float32(2))
    return step * signed(level, byte_at(weight, n, at + 74 + i // 8), i % 8)


def iq3_s_values(blocks):
    upper = field(blocks, 66 + QUAD // 8, QUAD % 8, 1).astype(np.int32)
    step = halves(blocks, 0) * (nibble_scales(blocks, 106, PART_OF_8) * np.float32(2))
    level = (2 * digits(IQ3_S[blocks[:, 2:66] | upper << 8], 4) + 1).astype(np.float32)
    return spread(step) * level * signs_of(blocks[:, 74:106])


# See llama3jit.ops.dequantise.
ROWS = {
    "iq1_s": (50, iq1_s, iq1_s_values),
    "iq1_m": (56, iq1_m, iq1_m_values),
    "iq2_xxs": (66, iq2_xxs, iq2_xxs_values),
    "iq2_xs": (74, iq2_xs, iq2_xs_values),
    "iq2_s": (82, iq2_s, iq2_s_values),
    "iq3_xxs": (98, iq3_xxs, iq3_xxs_values),
    "iq3_s": (110, iq3_s, iq3_s_values),
}
