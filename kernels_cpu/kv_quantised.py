"""A tile of attention against a block of a quantised cache, 32 components after 32.

Quants become floats in registers. Scales come in where they cost least: those of keys after the 32
products, those of values into the weights, a register of 16 tokens at a time.
"""

from __future__ import annotations

import numpy as np

from kernels_cpu.kv_plain import BLOCK_TOKENS, LANES, ROWS, SUMS
from kernels_cpu.simd import (
    fma,
    keep_where,
    load_f32,
    load_half,
    mul,
    prefetch,
    splat_f32,
    spread_f32,
    store_f32,
    to_float,
)
from kernels_cpu.simd_int import load_bytes, load_signed_bytes, load_words, nibble_of
from kernels_cpu.stack import stack_f32
from kernels_cpu.vectors import f32_registers

GROUP = 32  # components that share a scale
WEIGHTS = 256  # ROWS * BLOCK_TOKENS
HALVES = 2  # vectors of components in a group
VALUE_SUMS = 8  # ROWS * HALVES


def component_of_byte(word, part):
    return 4 * word + part


def component_of_nibble(word, part):
    return 4 * word + part // 2 + part % 2 * 16


def bytes_of_value(v_cache, at, half):
    return to_float(load_signed_bytes(v_cache, at + half * LANES))


def nibbles_of_value(v_cache, at, half):
    return nibble_of(load_bytes(v_cache, at), half)


def scores_of(scores, queries, k_cache, v_cache, base, head_dim):
    """scores[r, j] = queries[r] . key j, for the 64 keys of the block at `base`; asks for the
    values of the same block meanwhile."""
    sums = f32_registers(SUMS)
    zero = splat_f32(np.float32(0.0))
    for i in range(SUMS):
        store_f32(scores, i * LANES, zero)
    at = base
    for first in range(0, head_dim, GROUP):
        for i in range(SUMS):
            sums[i] = zero
        for w in range(WORDS):
            for j in range(4):
                word = load_words(k_cache, at + j * 4 * LANES)
                prefetch(v_cache, at + j * 4 * LANES)
                for i in range(PARTS):
                    key = part_of(word, i)
                    for r in range(ROWS):
                        query = spread_f32(queries, r * head_dim + first + component(w, i))
                        sums[4 * r + j] = fma(key, query, sums[4 * r + j])
            at += 4 * BLOCK_TOKENS
        for j in range(4):
            scale = mul(load_half(k_cache, at + j * 2 * LANES), splat_f32(UNIT))
            for r in range(ROWS):
                before = load_f32(scores, r * BLOCK_TOKENS + j * LANES)
                store_f32(scores, r * BLOCK_TOKENS + j * LANES, fma(sums[4 * r + j], scale, before))
        at += 2 * BLOCK_TOKENS


def scale_weights(weights, scores, v_cache, at):
    """weights[r, j] = scores[r, j] * the scale of token j, of the 64 at `at`. A token without
    weight keeps none, whatever its scale: it may be infinite."""
    for j in range(4):
        scale = load_half(v_cache, at + j * 2 * LANES)
        for r in range(ROWS):
            weight = load_f32(scores, r * BLOCK_TOKENS + j * LANES)
            weight = keep_where(mul(weight, scale), weight)
            store_f32(weights, r * BLOCK_TOKENS + j * LANES, weight)


def mix(sums_of_rows, shrinks, scores, v_cache, k_cache, base, following, head_dim, n, seen):
    """sums[r] = sums[r] * shrink[r] + sum of weight[r, j] * value j over the n first tokens of the
    block; asks for the keys of the block at `following` meanwhile. Quants are finite, so what a row
    does not see may be multiplied by 0."""
    sums = f32_registers(VALUE_SUMS)
    weights = stack_f32(WEIGHTS)
    bytes_of_token = 4 * WORDS
    start = 0
    for column in range(0, head_dim, GROUP):
        scale_weights(weights, scores, v_cache, base + start + bytes_of_token * BLOCK_TOKENS)
        for r in range(ROWS):
            shrink = spread_f32(shrinks, r)
            for half in range(HALVES):
                old = load_f32(sums_of_rows, r * head_dim + column + half * LANES)
                sums[r * HALVES + half] = mul(old, shrink)
        for j in range(n):
            at = start + j * bytes_of_token
            prefetch(k_cache, following + at)
            for half in range(HALVES):
                value = value_of(v_cache, base + at, half)
                for r in range(ROWS):
                    weight = spread_f32(weights, r * BLOCK_TOKENS + j)
                    sums[r * HALVES + half] = fma(value, weight, sums[r * HALVES + half])
        for r in range(ROWS):
            for half in range(HALVES):
                place = r * head_dim + column + half * LANES
                store_f32(sums_of_rows, place, sums[r * HALVES + half])
        start += (bytes_of_token + 2) * BLOCK_TOKENS
