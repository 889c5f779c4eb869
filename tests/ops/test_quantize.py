"""Activations to int8, on every face."""

import numpy as np
import pytest
from op_faces import faces_of, run

FACES = faces_of("quantize")
# Tokens, columns, how large the values are.
CASES = [(1, 32, 1.0), (3, 96, 1.0), (17, 512, 1e-3), (2, 1056, 1e4), (100, 64, 1.0)]


def outputs(n_tokens, k):
    return {
        "xq": np.full((n_tokens, k), 99, np.int8),
        "xs": np.full((n_tokens, k // 32), np.nan, np.float32),
        "xsum": np.full((n_tokens, k // 16), -(2**30), np.int32),
        "xtotal": np.full((n_tokens, k // 32), np.nan, np.float32),
    }


def quantized(face, x):
    out = outputs(*x.shape)
    with np.errstate(all="ignore"):
        run("quantize", "", face, **out, x=x)
    return out


@pytest.mark.parametrize(("n_tokens", "k", "size"), CASES)
@pytest.mark.parametrize("face", FACES)
def test_quantize(face, n_tokens, k, size):
    x = (size * np.random.default_rng(k).standard_normal((n_tokens, k))).astype(np.float32)
    x[n_tokens // 2, k // 2 :] = 0
    found = quantized(face, x)
    blocks = x.reshape(n_tokens, -1, 32).astype(np.float64)
    scales = np.abs(blocks).max(axis=2) / 127
    assert np.allclose(found["xs"], scales, rtol=2**-24, atol=0)
    xq = found["xq"].reshape(blocks.shape).astype(np.float64)
    # To the nearest step; a quotient that falls on a half may go either way by its last bits.
    assert (np.abs(blocks - xq * scales[..., None]) <= scales[..., None] * (0.5 + 1e-4)).all()
    assert np.abs(xq).max() == 127
    assert np.array_equal(found["xsum"], xq.reshape(n_tokens, -1, 16).sum(axis=2))
    assert np.array_equal(found["xtotal"], found["xs"] * xq.sum(axis=2).astype(np.float32))


@pytest.mark.parametrize("face", FACES)
def test_all_faces_give_the_same_bits(face):
    rng = np.random.default_rng(1)
    x = (rng.standard_normal((19, 544)) * 10.0 ** rng.integers(-6, 6, (19, 1))).astype(np.float32)
    x[3] = np.round(x[3] * 127)
    x[:, 5] = 0.5 * np.abs(x).max(axis=1) / 127  # halves of a step
    found, expected = quantized(face, x), quantized("python", x)
    for name in found:
        assert np.array_equal(found[name], expected[name]), name


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 15, 16, 31])
def test_what_is_no_number_does_not_become_one(face, value, place):
    x = np.ones((2, 96), np.float32)
    x[1, 32 + place] = value
    found = quantized(face, x)
    # Any product with such a block must be NaN or infinite.
    assert not np.isfinite(found["xs"][1, 1])
    assert not np.isfinite(found["xtotal"][1, 1])
    for name in ("xs", "xtotal"):
        assert np.isfinite(found[name]).sum() == 5


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("size", [1e-36, 1e-38, 1e-44])
def test_tiny_values_stay_tiny(face, size):
    """Scales below 2^-126 have no inverse: such values become 0."""
    x = (size * np.linspace(-1, 1, 64)).astype(np.float32)[None]
    found = quantized(face, x)
    assert np.abs(found["xq"] * np.repeat(found["xs"], 32, axis=1) - x).max() <= 127 * 2.0**-126
    assert np.abs(found["xsum"]).max() <= 16 * 127
    assert np.abs(found["xtotal"]).max() <= 64 * size


@pytest.mark.parametrize("face", FACES)
def test_rows_may_be_farther_apart_than_they_are_long(face):
    x = np.random.default_rng(4).standard_normal((5, 96)).astype(np.float32)
    out = outputs(5, 96)
    wider = {**out, "xq": np.full((5, 160), 99, np.int8)}
    run("quantize", "", face, **wider, x=x)
    assert np.array_equal(wider["xq"][:, :96], quantized(face, x)["xq"])
    assert (wider["xq"][:, 96:] == 99).all()
