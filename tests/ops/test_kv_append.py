"""Keys and values into the paged cache, on every face."""

import numpy as np
import pytest
from op_faces import faces_of, run
from paged import paged

# Pieces (first position, new tokens), KV heads, head_dim, tokens of a block.
CASES = [
    ([(0, 1)], 1, 2, 4),
    ([(3, 3), (0, 5), (7, 1)], 2, 24, 4),
    ([(60, 17), (0, 63), (130, 1)], 3, 16, 64),
]
FACES = [(face, v) for v in ("f16", "f32") for face in faces_of("kv_append", v)]


@pytest.mark.parametrize(("pieces", "kv_heads", "head_dim", "block_tokens"), CASES)
@pytest.mark.parametrize(("face", "variant"), FACES)
def test_kv_append(face, variant, pieces, kv_heads, head_dim, block_tokens):
    full = paged(pieces, kv_heads, head_dim, variant, block_tokens)
    # Start from a cache that lacks the new tokens, put them in, and find the cache that has them.
    bits = np.uint16 if variant == "f16" else np.uint32
    k_cache, v_cache = full.k_cache.copy(), full.v_cache.copy()
    k = np.stack([full.keys[s][p] for s, p in zip(full.seq_of, full.positions, strict=True)])
    v = np.stack([full.values[s][p] for s, p in zip(full.seq_of, full.positions, strict=True)])
    for s, p in zip(full.seq_of, full.positions, strict=True):
        block, at = full.block_tables[s, p // block_tokens], p % block_tokens
        k_cache.view(bits)[block, :, :, at] = 0xABCD
        v_cache.view(bits)[block, :, at, :] = 0xABCD
    arrays = {"k": k.astype(np.float32), "v": v.astype(np.float32)}
    run("kv_append", variant, face, k_cache=k_cache, v_cache=v_cache, **arrays, **full.where)
    assert np.array_equal(k_cache.view(bits), full.k_cache.view(bits))
    assert np.array_equal(v_cache.view(bits), full.v_cache.view(bits))


@pytest.mark.parametrize("face", faces_of("kv_append", "f16"))
def test_halves_are_rounded_to_nearest_and_keep_infinities(face):
    numbers = np.array([1 + 2**-11, 1 + 3 * 2**-11, 65519, 65520, -1e9, np.inf, 1e-8, -0.0])
    k = np.tile(numbers.astype(np.float32), (1, 1, 2))
    full = paged([(0, 1)], 1, 16, "f16", 4)
    run(
        "kv_append", "f16", face, k_cache=full.k_cache, v_cache=full.v_cache, k=k, v=k, **full.where
    )
    halves = [1, 1 + 2**-9, 65504, np.inf, -np.inf, np.inf, 0, -0.0]
    block = full.block_tables[0, 0]
    assert full.k_cache.view(np.float16)[block, 0, :8, 0].tolist() == halves
    assert full.v_cache.view(np.float16)[block, 0, 0, 8:].tolist() == halves
