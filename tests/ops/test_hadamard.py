"""Heads turned by a Hadamard matrix, on every face."""

import numpy as np
import pytest
from op_faces import EPS, close, faces_of, run

SHAPES = [(1, 1, 32), (3, 2, 64), (5, 3, 96), (2, 9, 128), (1, 2, 160), (2, 1, 256)]
FACES = faces_of("hadamard")


def matrix(n):
    """By the definition: the sign of the bits that i and j share."""
    return np.array([[(-1) ** (i & j).bit_count() for j in range(n)] for i in range(n)]) / n**0.5


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("face", FACES)
def test_against_the_matrix(face, shape):
    x = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    n = {32: 32, 64: 64, 96: 32, 128: 128, 160: 32, 256: 256}[shape[2]]
    parts = x.reshape(-1, n).astype(np.float64)
    expected = (parts @ matrix(n)).reshape(shape)
    bound = (n.bit_length() + 1) * EPS * np.abs(parts).sum(axis=1).max() / n**0.5
    found = x.copy()
    run("hadamard", "", face, x=found)
    close(found, expected, bound)
    run("hadamard", "", face, x=found)
    close(found, x, 4 * bound)


def test_tuned_has_the_bits_of_the_portable_one():
    x = np.random.default_rng(4).standard_normal((7, 3, 96)).astype(np.float32)
    turned = [x.copy() for _ in range(2)]
    for face, array in zip(("cpu", "tuned"), turned, strict=True):
        run("hadamard", "", face, x=array)
    assert np.array_equal(*turned)


@pytest.mark.parametrize("face", FACES)
def test_a_nan_stays_in_its_head(face):
    x = np.ones((2, 2, 64), np.float32)
    x[1, 0, 40] = np.nan
    run("hadamard", "", face, x=x)
    assert np.isnan(x).all(axis=2).tolist() == [[False, False], [True, False]]
    assert np.isfinite(x).all(axis=2).tolist() == [[True, True], [False, True]]
