"""The sums, on every face."""

import numpy as np
import pytest
from op_faces import EPS, close, faces_of, run

SHAPES = [(1, 1), (3, 17), (17, 63), (100, 33)]


def arrays(shape):
    rng = np.random.default_rng(shape)
    return rng.standard_normal(shape).astype(np.float32), rng.standard_normal(shape)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("face", faces_of("add"))
def test_add(face, shape):
    out, x = arrays(shape)
    x = x.astype(np.float32)
    expected = out.astype(np.float64) + x
    run("add", "", face, out=out, x=x)
    close(out, expected, EPS * np.abs(expected))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("face", faces_of("add_bias"))
def test_add_bias(face, shape):
    out, bias = arrays(shape)
    bias = bias[0].astype(np.float32)
    expected = out.astype(np.float64) + bias
    run("add_bias", "", face, out=out, bias=bias)
    close(out, expected, EPS * np.abs(expected))
