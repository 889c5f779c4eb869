"""Keys and values into the paged cache, on every face."""

import numpy as np
import pytest
from op_faces import faces_of, run
from paged import KV_TYPES, QUANTS, llamacpp_blocks, paged, place

# Pieces (first position, new tokens), KV heads, head_dim, tokens of a block.
CASES = [
    ([(0, 1)], 1, 2, 4),
    ([(3, 3), (0, 5), (7, 1)], 2, 24, 4),
    ([(60, 17), (0, 63), (130, 1)], 3, 16, 64),
    ([(60, 17), (0, 63), (130, 1)], 3, 96, 64),
    ([(0, 2), (63, 2)], 1, 32, 64),
]
FACES = [
    pytest.param(face, variant, *case, id=f"{face}-{variant}-{i}")
    for variant in KV_TYPES
    for face in faces_of("kv_append", variant)
    for i, case in enumerate(CASES)
    if variant not in QUANTS or case[2] % 32 == 0
]


@pytest.mark.parametrize(
    ("face", "variant", "pieces", "kv_heads", "head_dim", "block_tokens"), FACES
)
def test_kv_append(face, variant, pieces, kv_heads, head_dim, block_tokens):
    full = paged(pieces, kv_heads, head_dim, variant, block_tokens)
    # Start from a cache that lacks the new tokens, put them in, and find the cache that has them.
    bits = {"f16": np.uint16, "f32": np.uint32}.get(variant, np.uint8)
    k_cache, v_cache = full.k_cache.copy(), full.v_cache.copy()
    for s, p in zip(full.seq_of, full.positions, strict=True):
        block, at = full.block_tables[s, p // block_tokens], p % block_tokens
        if variant in QUANTS:
            lost = np.full((kv_heads, head_dim // 32, QUANTS[variant] + 2), 0xAB, np.uint8)
            place(k_cache[block], v_cache[block], at, lost, lost)
        else:
            k_cache.view(bits)[block, :, :, at] = 0xABCD
            v_cache.view(bits)[block, :, at, :] = 0xABCD
    run("kv_append", variant, face, k_cache=k_cache, v_cache=v_cache, k=full.k, v=full.v,
        **full.where)  # fmt: skip
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


# Groups of 32 numbers in which rounding, signs, ties and the ends of the range come out.
GROUPS = {
    "ties": np.concatenate([[127.0, -127.0], np.arange(-14.5, 15.5)]),
    "ties of q4_0": np.concatenate([[-8.0, 8.0], np.arange(-7.5, 7.5, 0.5)]),
    "the first of two": np.concatenate([np.zeros(5), [3.0, -3.0], np.full(25, 1.0)]),
    "the last": np.concatenate([np.full(31, -0.3), [-9.0]]),
    "zeros": np.zeros(32),
    "minus zeros": np.full(32, -0.0),
    "tiny": np.linspace(-1e-6, 2e-6, 32),
    "a scale too small for a half": np.linspace(-1e-12, 1e-12, 32),
    "a scale too large for a half": np.linspace(-1e9, 2e9, 32),
}


@pytest.mark.parametrize("variant", QUANTS)
@pytest.mark.parametrize("face", faces_of("kv_append", "q8_0"))
def test_quants_are_llamacpps(face, variant):
    groups = np.stack([*GROUPS.values()]).astype(np.float32)
    rng = np.random.default_rng(8)
    random = rng.standard_normal((23, 32)) * 10 ** rng.uniform(-6, 5, (23, 1))
    x = np.concatenate([groups, random]).astype(np.float32).reshape(1, 1, -1)
    with np.errstate(all="ignore"):
        blocks = llamacpp_blocks(x, variant)[0]
    full = paged([(0, 1)], 1, x.shape[2], variant)
    k_cache, v_cache = np.full_like(full.k_cache, 255), np.full_like(full.v_cache, 255)
    expected_k, expected_v = k_cache.copy(), v_cache.copy()
    block = full.block_tables[0, 0]
    place(expected_k[block], expected_v[block], 0, blocks, blocks)
    run("kv_append", variant, face, k_cache=k_cache, v_cache=v_cache, k=x, v=x, **full.where)
    assert np.array_equal(k_cache, expected_k)
    assert np.array_equal(v_cache, expected_v)


@pytest.mark.parametrize("variant", QUANTS)
@pytest.mark.parametrize("face", faces_of("kv_append", "q8_0"))
def test_what_is_no_number_makes_the_scale_so(face, variant):
    x = np.ones((2, 1, 32), np.float32)
    x[0, 0, 20], x[1, 0, 5] = np.nan, -np.inf
    full = paged([(0, 2)], 1, 32, variant)
    run("kv_append", variant, face, k_cache=full.k_cache, v_cache=full.v_cache, k=x, v=x,
        **full.where)  # fmt: skip
    for cache in (full.k_cache, full.v_cache):
        block = cache[full.block_tables[0, 0], 0].reshape(-1)
        scales = block[QUANTS[variant] * 64 :].view(np.float16)
        assert np.isnan(scales[0])
        assert np.isinf(scales[1])
