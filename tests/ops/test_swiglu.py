"""SwiGLU on every face."""

import numpy as np
import pytest
from op_faces import EPS, close, faces_of, nans, run

SHAPES = [(1, 1), (3, 17), (2, 255), (17, 63), (2, 257), (3, 600)]


def silu_times(gate, up):
    gate = gate.astype(np.float64)
    small = np.exp(-np.abs(gate))
    return gate * np.where(gate < 0, small, 1) / (1 + small) * up


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("face", faces_of("swiglu"))
def test_swiglu(face, shape):
    rng = np.random.default_rng(shape)
    gate = (3 * rng.standard_normal(shape)).astype(np.float32)
    up = rng.standard_normal(shape).astype(np.float32)
    out = nans(*shape)
    run("swiglu", "", face, out=out, gate=gate, up=up)
    expected = silu_times(gate, up)
    # exp is good to 2 units (4 halves of one); the sum, the quotient and the product round too.
    close(out, expected, 8 * EPS * np.abs(expected))


@pytest.mark.parametrize("face", faces_of("swiglu"))
def test_swiglu_far_from_zero(face):
    gate = np.linspace(-200, 200, 801, dtype=np.float32)[None]
    up = np.full_like(gate, 2.0)
    out = nans(*gate.shape)
    run("swiglu", "", face, out=out, gate=gate, up=up)
    # Where exp(-gate) would overflow the result is nothing beside the other terms of a product.
    close(out, silu_times(gate, up), 8 * EPS * np.abs(silu_times(gate, up)) + 3e-36)


@pytest.mark.parametrize("face", faces_of("swiglu"))
@pytest.mark.parametrize("which", ["gate", "up"])
def test_a_nan_stays_a_nan(face, which):
    arrays = {"gate": np.ones((2, 70), np.float32), "up": np.ones((2, 70), np.float32)}
    holes = [(0, 3), (1, 40), (1, 69)]
    for hole in holes:
        arrays[which][hole] = np.nan
    out = np.zeros((2, 70), np.float32)
    run("swiglu", "", face, out=out, **arrays)
    assert sorted(map(tuple, np.argwhere(np.isnan(out)).tolist())) == holes
