"""Attention in chunks that threads share: right, and to the bit the attention that is not split."""

import numpy as np
import pytest
from op_faces import close, faces_of, nans, run
from paged import KV_TYPES, QUANTS, paged
from test_attention import softmax_of_everything

from llama3jit.ops.split_attention import CHUNK, FEW, NOTHING

FACES = faces_of("attention_chunks", "f32", njit=False)


def of(cache, q, variant, face, *, scale, window):
    """(whole, split, sums, weights): the one op's result, the two ops', and what lies between."""
    given = {"q": q, "k_cache": cache.k_cache, "v_cache": cache.v_cache, **cache.where}
    given |= {"scale": scale, "window": window}
    n_tokens, heads, head_dim = q.shape
    chunks = -(-int(cache.positions.max() + 1) // CHUNK)
    sums, weights = nans(FEW, heads, chunks, head_dim), nans(FEW, heads, chunks, 2)
    run("attention_chunks", variant, face, sums=sums, weights=weights, **given)
    split, whole = nans(*q.shape), nans(*q.shape)
    run("attention_merge", "", face, out=split, sums=sums, weights=weights)
    run("attention", variant, face, out=whole, **given)
    # Rows of tokens that are not there stay as they were.
    assert np.isnan(sums[n_tokens:]).all()
    assert np.isnan(weights[n_tokens:]).all()
    return whole, split, sums[:n_tokens], weights[:n_tokens]


def case(pieces, heads, kv_heads, head_dim, variant, seed=0):
    cache = paged(pieces, kv_heads, head_dim, variant, seed=seed)
    rng = np.random.default_rng(seed + 1)
    q = rng.standard_normal((len(cache.positions), heads, head_dim)).astype(np.float32)
    return cache, q, float(np.float32(head_dim**-0.5))


# Pieces (first position, new tokens), heads, KV heads, head_dim, window.
SMALL = [
    ([(511, 1)], 1, 1, 16, 0),
    ([(511, 2)], 2, 1, 16, 0),
    ([(512, 1), (3, 1)], 2, 2, 16, 0),
    ([(700, 1)], 2, 1, 16, 100),
    ([(530, 1)], 1, 1, 32, 60),
]
LARGE = [
    ([(1299, 1)], 9, 3, 64, 0),
    ([(1020, 8)], 4, 2, 80, 0),
    ([(1299, 1), (510, 3), (0, 4), (1023, 2)], 4, 1, 128, 0),
    ([(1290, 16)], 7, 1, 16, 0),
    ([(1290, 16)], 7, 1, 96, 0),
    ([(1299, 1), (40, 2)], 4, 2, 64, 900),
    ([(1600, 2), (512, 3)], 4, 4, 64, 1),
    ([(1600, 1)], 2, 1, 256, 0),
]


CASES = [
    pytest.param(face, variant, *shape, id=f"{face}-{variant}-{i}")
    for face in FACES
    for variant in KV_TYPES
    for i, shape in enumerate(SMALL if face == "python" else SMALL + LARGE)
    if variant not in QUANTS or shape[3] % 32 == 0
]


@pytest.mark.parametrize(
    ("face", "variant", "pieces", "heads", "kv_heads", "head_dim", "window"), CASES
)
def test_against_softmax(face, variant, pieces, heads, kv_heads, head_dim, window):
    cache, q, scale = case(pieces, heads, kv_heads, head_dim, variant)
    _, split, _, _ = of(cache, q, variant, face, scale=scale, window=window)
    expected, bound = softmax_of_everything(q, cache, scale, window)
    close(split, expected, bound)


@pytest.mark.parametrize("face", FACES)
def test_what_a_chunk_says_of_itself(face):
    """The largest score and the weights' sum of each chunk; nothing where none of it is seen."""
    cache, q, scale = case([(700, 1), (30, 1), (1100, 1)], 2, 1, 16, "f32")
    window = 150
    _, _, sums, weights = of(cache, q, "f32", face, scale=scale, window=window)
    for t, last in enumerate(cache.positions):
        for c in range(3):
            first = max(c * CHUNK, last - window + 1)
            seen = np.arange(first, min(last + 1, (c + 1) * CHUNK))
            if len(seen) == 0:
                assert (weights[t, :, c, 0] == NOTHING).all()
                assert not weights[t, :, c, 1].any()
                assert not sums[t, :, c].any()
                continue
            scores = q[t].astype(np.float64) @ cache.keys[t][seen, 0].T * scale
            shares = np.exp(scores - scores.max(axis=1, keepdims=True))
            assert np.allclose(weights[t, :, c, 0], scores.max(axis=1), rtol=0, atol=1e-5)
            assert np.allclose(weights[t, :, c, 1], shares.sum(axis=1), rtol=1e-4)
            assert np.allclose(sums[t, :, c], shares @ cache.values[t][seen, 0], atol=1e-3)


# A token each of sequences of many lengths, three of one, 16 of two, and so on.
PIECES = {
    "511": [(510, 1)],
    "512": [(511, 1)],
    "513": [(512, 1)],
    "1024": [(1023, 1)],
    "1300": [(1299, 1)],
    "three over an edge": [(510, 3)],
    "three sequences": [(1299, 1), (4, 1), (511, 1)],
    "lengths side by side": [(0, 1), (511, 1), (512, 1), (1023, 2), (63, 3), (1299, 3), (900, 5)],
    "sixteen of one": [(1284, 16)],
    "sixteen of two": [(505, 9), (1293, 7)],
}
assert all(sum(n for _, n in pieces) <= FEW for pieces in PIECES.values())
HEADS = [(2, 1, 16), (9, 3, 64), (4, 4, 80), (6, 1, 128)]


@pytest.mark.parametrize("pieces", PIECES.values(), ids=PIECES)
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("variant", KV_TYPES)
def test_split_is_whole_to_the_bit(variant, heads, pieces):
    if variant in QUANTS:
        heads = (*heads[:2], -(-heads[2] // 32) * 32)
    cache, q, scale = case(pieces, *heads, variant)
    results = set()
    for window in (0, 200, 512, 700):
        whole, split, _, _ = of(cache, q, variant, "tuned", scale=scale, window=window)
        assert np.isfinite(whole).all()
        assert np.array_equal(split, whole)
        results.add(split.tobytes())
    assert len(results) >= (2 if cache.positions.max() > 200 else 1)


def test_scores_far_apart():
    """A chunk whose weights vanish beside another's, earlier and later ones."""
    cache, q, _ = case([(1500, 1), (1300, 2), (600, 1)], 4, 2, 32, "f32")
    whole, split, _, weights = of(cache, 300 * q, "f32", "tuned", scale=1.0, window=0)
    assert np.array_equal(split, whole)
    assert np.isfinite(split).all()
    largest = weights[..., 0]
    assert (np.ptp(largest[0], axis=1) > 100).any(), "exp of the distance is not 0"


@pytest.mark.parametrize("value", [np.inf, np.nan])
@pytest.mark.parametrize("window", [0, 40])
def test_a_value_that_is_no_number_reaches_those_that_see_it(value, window):
    """Rows of one tile, of which some see it: the others do not even multiply it by 0."""
    cache, q, scale = case([(1095, 12), (2, 3)], 1, 1, 16, "f32")
    for at in (1060, 1100):
        cache.v_cache[cache.block_tables[0, at // 64], 0, at % 64, 3] = value
    clean = case([(1095, 12), (2, 3)], 1, 1, 16, "f32")[0]
    expected, _, _, _ = of(clean, q, "f32", "tuned", scale=scale, window=window)
    whole, split, _, _ = of(cache, q, "f32", "tuned", scale=scale, window=window)
    seen = [
        any(at <= last and (not window or at > last - window) for at in (1060, 1100))
        for last in cache.positions
    ]
    assert len(set(seen)) == 2
    for out in (whole, split):
        assert (~np.isfinite(out[:, 0, 3])).tolist() == seen
        assert np.array_equal(np.delete(out, 3, axis=2), np.delete(expected, 3, axis=2))
        assert np.array_equal(out[~np.array(seen)], expected[~np.array(seen)])


@pytest.mark.parametrize("face", ["cpu", "tuned"])
def test_a_nan_reaches_those_that_see_it(face):
    cache, q, scale = case([(1299, 1), (1299, 1), (300, 1)], 2, 1, 16, "f32")
    cache.k_cache[cache.block_tables[0, 3], 0, 5, 11] = np.nan
    whole, split, _, _ = of(cache, q, "f32", face, scale=scale, window=0)
    for out in (whole, split):
        assert np.isnan(out).all(axis=(1, 2)).tolist() == [True, False, False]
        assert np.isfinite(out[1:]).all()
