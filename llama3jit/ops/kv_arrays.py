"""KV caches in NumPy, for the references: whole blocks to float64 and rows of tokens to blocks."""

from __future__ import annotations

import numpy as np

from llama3jit.ops.kv_dtypes import GROUP, QUANT_BYTES
from llama3jit.ops.quantize import INFINITY, SMALLEST


def plain(x, cache):
    """float array x in the dtype that an f16 or f32 cache has; f16 is kept as its bits."""
    if cache.dtype == np.uint16:
        with np.errstate(over="ignore"):
            return x.astype(np.float16).view(np.uint16)
    return x.astype(cache.dtype)


def wide(cache):
    """An f16 or f32 cache as float64."""
    return (cache.view(np.float16) if cache.dtype == np.uint16 else cache).astype(np.float64)


def quantised(x, variant):
    """Quants u8[..., groups, n] and scales, f16 as u16[..., groups], of x [..., head_dim], as
    llama.cpp rounds them."""
    groups = np.asarray(x, np.float32).reshape(*x.shape[:-1], -1, GROUP)
    places = np.abs(groups).argmax(axis=-1, keepdims=True)
    largest = np.take_along_axis(groups, places, axis=-1)
    divisor = np.float32(-8.0) if variant == "q4_0" else np.float32(127.0)
    scales = (largest if variant == "q4_0" else np.abs(largest)) / divisor
    inverse = np.zeros_like(scales)
    usable = (np.abs(scales) >= SMALLEST) & (np.abs(scales) < INFINITY)
    np.divide(np.float32(1.0), scales, out=inverse, where=usable)
    scaled = np.where(usable, groups, np.float32(0.0)) * inverse
    if variant == "q4_0":
        nibbles = np.minimum(np.trunc(scaled + np.float32(8.5)), 15).astype(np.uint8)
        quants = nibbles[..., :16] | nibbles[..., 16:] << np.uint8(4)
    else:
        whole = np.trunc(scaled)
        whole += np.trunc(2 * (scaled - whole))
        quants = whole.astype(np.int8).view(np.uint8)
    with np.errstate(over="ignore"):
        return quants, scales[..., 0].astype(np.float16).view(np.uint16)


def values_of(quants, scales, variant):
    """float64 [..., groups, 32] of quants u8[..., groups, n] and scales u16[..., groups]."""
    if variant == "q4_0":
        numbers = np.concatenate([quants & 15, quants >> 4], axis=-1).astype(np.int8) - np.int8(8)
    else:
        numbers = np.ascontiguousarray(quants).view(np.int8)
    with np.errstate(invalid="ignore"):
        return numbers * np.ascontiguousarray(scales).view(np.float16)[..., None].astype(float)


def parts_of(cache, variant):
    """Views of a quantised cache: the quants u8[n_blocks, heads, groups, n * tokens] and the
    scales u16[n_blocks, heads, groups, tokens]."""
    n_blocks, heads, lines, tokens = cache.shape
    n = QUANT_BYTES[variant]
    groups = cache.reshape(n_blocks, heads, lines // (n + 2), (n + 2) * tokens)
    return groups[..., : n * tokens], groups[..., n * tokens :].view(np.uint16)


def in_keys(quants, tokens):
    """Quants of keys as a view u8[n_blocks, heads, groups, pieces, tokens, 4]."""
    return quants.reshape(*quants.shape[:3], -1, tokens, 4)


def in_values(quants, tokens):
    """Quants of values as a view u8[n_blocks, heads, groups, tokens, n]."""
    return quants.reshape(*quants.shape[:3], tokens, -1)


def put(k_cache, v_cache, k, v, blocks, at, variant):
    """Write k and v [T, heads, head_dim] as tokens `at` of `blocks`, both [T]."""
    if variant not in QUANT_BYTES:
        k_cache[blocks, :, :, at] = plain(k, k_cache)
        v_cache[blocks, :, at, :] = plain(v, v_cache)
        return
    tokens = k_cache.shape[3]
    quants, scales = parts_of(k_cache, variant)
    new_quants, scales[blocks, :, :, at] = quantised(k, variant)
    pieces = new_quants.reshape(*new_quants.shape[:3], -1, 4)
    in_keys(quants, tokens)[blocks, :, :, :, at, :] = pieces
    quants, scales = parts_of(v_cache, variant)
    new_quants, scales[blocks, :, :, at] = quantised(v, variant)
    in_values(quants, tokens)[blocks, :, :, at, :] = new_quants


def taken(k_cache, v_cache, blocks, variant):
    """Keys and values [tokens, heads, head_dim] float64 of these blocks, one after the other."""
    k, v = k_cache[blocks], v_cache[blocks]
    heads, tokens = k.shape[1], k.shape[3]
    if variant not in QUANT_BYTES:
        k, v = wide(k).transpose(0, 3, 1, 2), wide(v).transpose(0, 2, 1, 3)
    else:
        quants, scales = parts_of(k, variant)
        pieces = in_keys(quants, tokens).transpose(0, 4, 1, 2, 3, 5)
        pieces = pieces.reshape(*pieces.shape[:4], -1)
        k = values_of(pieces, scales.transpose(0, 3, 1, 2), variant)
        quants, scales = parts_of(v, variant)
        rows = in_values(quants, tokens).transpose(0, 3, 1, 2, 4)
        v = values_of(rows, scales.transpose(0, 3, 1, 2), variant)
    return (array.reshape(len(blocks) * tokens, heads, -1) for array in (k, v))
