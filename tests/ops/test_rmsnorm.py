"""rmsnorm on every face."""

import numpy as np
import pytest
from op_faces import EPS, close, faces_of, nans, run

# Rows, columns, how large the values are, eps.
CASES = [
    (1, 1, 1.0, 1e-5),
    (3, 17, 1.0, 1e-5),
    (17, 64, 1e-4, 1e-5),
    (5, 576, 1e3, 1e-6),
    (100, 63, 1.0, 1e-5),
    (2, 64, 0.0, 1e-5),
]


@pytest.mark.parametrize(("rows", "n", "size", "eps"), CASES)
@pytest.mark.parametrize("face", faces_of("rmsnorm"))
def test_rmsnorm(face, rows, n, size, eps):
    rng = np.random.default_rng(n)
    x = (size * rng.standard_normal((rows, n))).astype(np.float32)
    weight = rng.standard_normal(n).astype(np.float32)
    out = nans(rows, n)
    run("rmsnorm", "", face, out=out, x=x, weight=weight, eps=eps)
    expected = np.empty((rows, n))
    for r in range(rows):
        mean = sum(float(v) ** 2 for v in x[r]) / n
        expected[r] = x[r].astype(np.float64) * weight / (mean + np.float64(np.float32(eps))) ** 0.5
    # A sum of n squares is off by n roundings at most, its root by half of that; then four more.
    close(out, expected, (n / 2 + 6) * EPS * np.abs(expected))


@pytest.mark.parametrize("face", faces_of("rmsnorm"))
def test_a_nan_stays_in_its_row(face):
    x = np.ones((3, 40), np.float32)
    x[1, 7] = np.nan
    out = np.zeros((3, 40), np.float32)
    run("rmsnorm", "", face, out=out, x=x, weight=np.ones(40, np.float32), eps=1e-5)
    assert np.isnan(out[1]).all()
    assert np.isfinite(out[[0, 2]]).all()
