"""Attention on every face: group and head sizes, ragged batches, windows, blocks in any order."""

import numpy as np
import pytest
from op_faces import EPS, close, faces_of, nans, run
from paged import KV_TYPES, QUANTS, paged

ONE = [(0, 1)]
RAGGED = [(0, 3), (5, 1), (63, 2), (0, 17), (130, 1)]  # (first position, new tokens)
# Pieces, heads, KV heads, head_dim, window. Tuned tiles are 4 rows of a KV head.
SMALL = [
    (ONE, 1, 1, 16, 0),
    ([(2, 3), (0, 2)], 3, 1, 16, 0),
    ([(5, 2), (9, 1)], 4, 2, 24, 3),  # a head_dim that no tuned kernel takes
    ([(2, 3), (0, 2)], 3, 1, 32, 0),
    ([(5, 1)], 2, 2, 64, 3),
]
LARGE = [
    (RAGGED, 4, 4, 16, 0),
    (RAGGED, 4, 2, 32, 0),
    (RAGGED, 9, 3, 64, 0),
    (RAGGED, 4, 1, 80, 0),
    (RAGGED, 7, 1, 96, 0),
    (RAGGED, 4, 2, 128, 0),
    ([(70, 3)], 2, 1, 256, 0),
    ([(0, 100)], 3, 3, 32, 0),
    ([(0, 100), (200, 9)], 4, 2, 64, 33),
    (RAGGED, 4, 2, 32, 1),
    ([(64, 1), (127, 1), (128, 1), (191, 1)], 8, 2, 48, 64),
]
FACES = [(face, v) for v in KV_TYPES for face in faces_of("attention", v)]


def softmax_of_everything(q, cache, scale, window):
    """out[t, h] by the formula; and how far off it a float32 computation may be."""
    n_tokens, heads, head_dim = q.shape
    out, bound = np.empty(q.shape), np.empty((n_tokens, heads, 1))
    group = heads // cache.keys[0].shape[1]
    for t in range(n_tokens):
        s, last = cache.seq_of[t], cache.positions[t]
        seen = [j for j in range(last + 1) if window == 0 or j > last - window]
        for h in range(heads):
            k, v = cache.keys[s][seen, h // group], cache.values[s][seen, h // group]
            products = q[t, h].astype(np.float64) * k
            scores = products.sum(axis=1) * scale
            weights = np.exp(scores - scores.max())
            weights /= weights.sum()
            out[t, h] = weights @ v
            # A score is off by its roundings; a weight by twice that, by exp's and the sum's.
            score_error = (head_dim + 3) * EPS * np.abs(products).sum(axis=1).max() * scale
            error = 2 * score_error + (2 * len(seen) + 3 * len(seen) ** 0.5 + 12) * EPS
            bound[t, h] = error * np.abs(v).max()
    return out, bound


def applies(face, variant, case):
    pieces, heads, _, head_dim, _ = case
    if variant in QUANTS and head_dim % 32:
        return False
    if face == "tuned":
        return head_dim % 16 == 0
    return face != "python" or sum(n for _, n in pieces) * heads < 20


CASES = [
    pytest.param(face, variant, *case, id=f"{face}-{variant}-{i}")
    for face, variant in FACES
    for i, case in enumerate(SMALL + LARGE)
    if applies(face, variant, case)
]


@pytest.mark.parametrize(
    ("face", "variant", "pieces", "heads", "kv_heads", "head_dim", "window"), CASES
)
def test_attention(face, variant, pieces, heads, kv_heads, head_dim, window):
    cache = paged(pieces, kv_heads, head_dim, variant)
    q = np.random.default_rng(1).standard_normal((len(cache.positions), heads, head_dim))
    q = q.astype(np.float32)
    scale = float(np.float32(head_dim**-0.5))
    out = nans(*q.shape)
    caches = {"k_cache": cache.k_cache, "v_cache": cache.v_cache}
    run(
        "attention",
        variant,
        face,
        out=out,
        q=q,
        **caches,
        **cache.where,
        scale=scale,
        window=window,
    )
    expected, bound = softmax_of_everything(q, cache, scale, window)
    close(out, expected, bound)


def tuned(cache, q, variant, window=0, scale=0.25):
    out = nans(*q.shape)
    caches = {"k_cache": cache.k_cache, "v_cache": cache.v_cache}
    where = dict(cache.where)
    run("attention", variant, "tuned", out=out, q=q, **caches, **where, scale=scale, window=window)
    return out


@pytest.mark.parametrize("variant", KV_TYPES)
@pytest.mark.parametrize("window", [0, 20])
def test_a_row_does_not_depend_on_its_tile(window, variant):
    """Each token alone and among others, in other blocks: the same bits."""
    pieces = [(0, 70), (33, 5), (100, 31)]
    cache = paged(pieces, 2, 32, variant, seed=3)
    q = np.random.default_rng(4).standard_normal((106, 6, 32)).astype(np.float32)
    whole = tuned(cache, q, variant, window)
    for t in (0, 1, 63, 64, 69, 70, 74, 75, 105):
        one = paged(pieces, 2, 32, variant, seed=3)
        order = np.random.default_rng(t).permutation(len(one.k_cache))
        places = np.argsort(order)  # the block that was b now lies at places[b]
        moved = type(one)(
            one.keys,
            one.values,
            one.k,
            one.v,
            one.k_cache[order],
            one.v_cache[order],
            one.positions[t : t + 1],
            np.zeros(1, np.int32),
            places[one.block_tables[one.seq_of[t]]][None].astype(np.int32),
        )
        assert np.array_equal(tuned(moved, q[t : t + 1], variant, window)[0], whole[t])


def test_large_scores():
    """Scores so far apart that one weight is all there is, and so large that exp would overflow."""
    cache = paged([(0, 80)], 1, 16, "f32")
    q = 300 * np.random.default_rng(2).standard_normal((80, 2, 16)).astype(np.float32)
    expected, _ = softmax_of_everything(q, cache, 1.0, 0)
    for face in ("cpu", "tuned", "njit"):
        out = nans(*q.shape)
        caches = {"k_cache": cache.k_cache, "v_cache": cache.v_cache}
        run("attention", "f32", face, out=out, q=q, **caches, **cache.where, scale=1.0, window=0)
        close(out, expected, 0.02)  # a score of 3000 has units of 2^-12 in float32


@pytest.mark.parametrize("face", faces_of("attention", "f32"))
def test_a_nan_reaches_the_tokens_that_see_it_and_no_others(face):
    cache = paged([(0, 12), (0, 3)], 1, 16, "f32", seed=5)
    cache.k_cache[cache.block_tables[0, 0], 0, 2, 7] = np.nan
    q = np.ones((15, 2, 16), np.float32)
    out = np.zeros(q.shape, np.float32)
    caches = {"k_cache": cache.k_cache, "v_cache": cache.v_cache}
    run("attention", "f32", face, out=out, q=q, **caches, **cache.where, scale=0.25, window=0)
    assert np.isnan(out).all(axis=(1, 2)).tolist() == [False] * 7 + [True] * 5 + [False] * 3
    assert np.isfinite(out[:7]).all()
    assert np.isfinite(out[12:]).all()


@pytest.mark.parametrize("variant", QUANTS)
@pytest.mark.parametrize("scale", [np.nan, np.inf])
@pytest.mark.parametrize("face", faces_of("attention", "q8_0"))
def test_a_scale_that_is_no_number_reaches_the_tokens_that_see_it(face, scale, variant):
    """Of keys and of values, in rows of one tile and in other sequences."""
    if face == "python" and scale is np.inf:
        pytest.skip("the same function")
    q = np.ones((15, 2, 32), np.float32)
    clean = paged([(0, 12), (0, 3)], 1, 32, variant, seed=5)
    given = {**clean.where, "scale": 0.25, "window": 0}
    expected = nans(*q.shape)
    run("attention", variant, face, out=expected, q=q, k_cache=clean.k_cache,
        v_cache=clean.v_cache, **given)  # fmt: skip
    for name in ("k_cache", "v_cache"):
        cache = paged([(0, 12), (0, 3)], 1, 32, variant, seed=5)
        block = getattr(cache, name)[cache.block_tables[0, 0], 0].reshape(-1)
        block[QUANTS[variant] * 64 :].view(np.uint16)[7] = np.float16(scale).view(np.uint16)
        out = np.zeros(q.shape, np.float32)
        run("attention", variant, face, out=out, q=q, k_cache=cache.k_cache,
            v_cache=cache.v_cache, **given)  # fmt: skip
        assert np.array_equal(out[:7], expected[:7])
        assert np.array_equal(out[12:], expected[12:])
        if name == "v_cache" or np.isnan(scale):
            assert (~np.isfinite(out[7:12])).any(axis=(1, 2)).all()
