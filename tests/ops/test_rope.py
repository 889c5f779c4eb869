"""Rotary embedding on every face."""

import math

import numpy as np
import pytest
from op_faces import EPS, close, faces_of, nans, run

# Tokens, heads, head_dim, components that turn.
CASES = [(1, 1, 2, 2), (3, 4, 24, 24), (17, 3, 64, 64), (5, 2, 80, 32), (100, 1, 16, 16)]


def frequencies(half):
    return 10000.0 ** (-np.arange(half, dtype=np.float64) / half)


@pytest.mark.parametrize("magnitude", [1.0, 1.25])
@pytest.mark.parametrize("face", faces_of("rope_angles"))
def test_angles(face, magnitude):
    positions = np.array([0, 1, 77, 4095, 131071, 2**31 - 66], np.int32)
    inverse = frequencies(16)
    turns = nans(len(positions), 16, 2)
    run(
        "rope_angles",
        "",
        face,
        turns=turns,
        positions=positions,
        inverse_frequencies=inverse,
        magnitude=magnitude,
    )
    expected = np.array(
        [
            [[f(int(p) * float(w)) * magnitude for f in (math.cos, math.sin)] for w in inverse]
            for p in positions
        ]
    )
    # The angle rounds in float64, which at position 2^31 is 2^-22; then two float32 roundings.
    bound = 3 * EPS * magnitude + np.abs(positions)[:, None, None] * 2.0**-52 * magnitude
    close(turns, expected, bound)


@pytest.mark.parametrize(("n_tokens", "heads", "head_dim", "dim"), CASES)
@pytest.mark.parametrize("face", faces_of("rope"))
def test_rope(face, n_tokens, heads, head_dim, dim):
    rng = np.random.default_rng(head_dim)
    x = rng.standard_normal((n_tokens, heads, head_dim)).astype(np.float32)
    angles = np.outer(rng.integers(0, 5000, n_tokens), frequencies(dim // 2))
    turns = np.stack([np.cos(angles), np.sin(angles)], axis=2).astype(np.float32)
    # A pair is a complex number, and turning it is a product.
    pairs = x[:, :, 0:dim:2].astype(np.complex128) + 1j * x[:, :, 1:dim:2]
    turned = pairs * (turns[..., 0].astype(np.complex128) + 1j * turns[..., 1])[:, None, :]
    expected = x.astype(np.float64)
    expected[:, :, 0:dim:2], expected[:, :, 1:dim:2] = turned.real, turned.imag
    sizes = np.zeros_like(expected)
    sizes[:, :, 0:dim:2] = sizes[:, :, 1:dim:2] = np.abs(pairs)
    run("rope", "", face, x=x, turns=turns)
    close(x, expected, 4 * EPS * sizes)
