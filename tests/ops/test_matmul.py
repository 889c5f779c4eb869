"""Matrix products on every face, in the formats that block_values.py reads; test_matmul_formats.py
has the others."""

import numpy as np
import pytest
from block_values import BLOCK_BYTES, QUANTISED, random_blocks, values_of
from op_faces import EPS, close, faces_of, int8_activations, nans, packed, run

# Tokens, rows of the weight, columns. Tuned tiles take 6, 2 or 1 tokens, 32 rows, 96 tokens a part.
SMALL = [(1, 1, 32), (3, 17, 64), (2, 33, 32)]
LARGE = [(5, 63, 96), (6, 32, 160), (7, 100, 64), (13, 16, 576), (97, 31, 64), (200, 49, 32)]
FLOATS_ONLY = [(1, 3, 1), (7, 17, 63), (8, 33, 24)]  # columns that no block divides
EXACT_NJIT = ("q4_1", "f16")
INT8_NJIT = ("q4_1",)


def shapes_for(face, variant):
    shapes = SMALL + (FLOATS_ONLY if variant not in QUANTISED else [])
    return shapes if face == "python" else shapes + LARGE


def cases(name, variants, njit):
    return [
        pytest.param(face, variant, shape, id=f"{face}-{variant}-{'x'.join(map(str, shape))}")
        for variant in variants
        for face in faces_of(name, variant, njit=variant in njit)
        for shape in shapes_for(face, variant)
    ]


@pytest.mark.parametrize(("face", "variant", "shape"), cases("matmul", BLOCK_BYTES, EXACT_NJIT))
def test_matmul(face, variant, shape):
    n_tokens, n, k = shape
    rng = np.random.default_rng(shape)
    weight = random_blocks(rng, variant, n, k)
    x = rng.standard_normal((n_tokens, k)).astype(np.float32)
    out = nans(n_tokens, n)
    given = packed(weight, variant) if face == "tuned" else weight
    run("matmul", variant, face, out=out, weight=given, x=x)
    w = values_of(weight, variant)
    # k products and sums, in any order, each rounded once; two roundings more where a weight is
    # a product and a sum.
    bound = (k + 4) * EPS * (np.abs(x.astype(np.float64)) @ np.abs(w).T)
    if variant == "q4_1":
        bound += 2 * EPS * (np.abs(x.astype(np.float64)) @ minima_and_steps(weight, k).T)
    close(out, x.astype(np.float64) @ w.T, bound)


def minima_and_steps(weight, k):
    """What the terms of a q4_1 value can be: |d| * 15 + |m|, for each column."""
    blocks = weight.reshape(-1, BLOCK_BYTES["q4_1"])
    halves = np.abs(blocks[:, :4].copy().view(np.float16).astype(np.float64))
    return np.repeat(halves[:, 0] * 15 + halves[:, 1], 32).reshape(-1, k)


def int8_case(variant, shape):
    """A weight, activations with scales of many sizes, and all that `quantize` gives with them."""
    n_tokens, n, k = shape
    rng = np.random.default_rng(shape)
    weight = random_blocks(rng, variant, n, k)
    xq = rng.integers(-127, 128, (n_tokens, k)).astype(np.int8)
    xq[0] = 127 * rng.choice([-1, 1], k)  # the largest sums
    xs = np.exp(rng.standard_normal((n_tokens, k // 32))).astype(np.float32)
    xs[-1, 0] = 0
    return weight, int8_activations(xq, xs)


def int8_truth(weight, variant, xq, xs):
    """The products in float64, and the sum of their blocks' magnitudes, [T, N] each."""
    n_tokens = len(xq)
    steps = values_of(weight, variant).reshape(len(weight), -1, 32)
    blocks = np.einsum("tbk,nbk->tnb", xq.reshape(n_tokens, -1, 32).astype(np.float64), steps)
    blocks *= xs[:, None, :]
    sizes = np.einsum(
        "tbk,nbk->tnb", np.abs(xq.reshape(n_tokens, -1, 32).astype(np.float64)), np.abs(steps)
    )
    return blocks.sum(axis=2), (sizes * xs[:, None, :]).sum(axis=2), np.abs(blocks).sum(axis=2)


@pytest.mark.parametrize(("face", "variant", "shape"), cases("matmul_int8", QUANTISED, INT8_NJIT))
def test_matmul_int8(face, variant, shape):
    weight, activations = int8_case(variant, shape)
    out = nans(shape[0], shape[1])
    given = packed(weight, variant) if face == "tuned" else weight
    run("matmul_int8", variant, face, out=out, weight=given, **activations)
    truth, sizes, _ = int8_truth(weight, variant, activations["xq"], activations["xs"])
    bound = (shape[2] + 8) * EPS * sizes
    if variant == "q4_1":
        x = np.abs(activations["xq"]) * np.repeat(activations["xs"], 32, axis=1).astype(np.float64)
        bound += 3 * EPS * (x @ minima_and_steps(weight, shape[2]).T)
    close(out, truth, bound)


@pytest.mark.parametrize("variant", ["q4_0", "q8_0"])
@pytest.mark.parametrize("shape", SMALL + LARGE)
def test_the_integer_part_is_exact(variant, shape):
    """The tuned product rounds once a block for its scale and once for the sum, nothing else."""
    weight, activations = int8_case(variant, shape)
    out = nans(shape[0], shape[1])
    run("matmul_int8", variant, "tuned", out=out, weight=packed(weight, variant), **activations)
    truth, _, sizes = int8_truth(weight, variant, activations["xq"], activations["xs"])
    blocks = shape[2] // 32
    close(out, truth, (blocks + 2) * EPS * sizes)


@pytest.mark.parametrize("variant", ["q4_0", "q4_1", "q8_0"])
def test_the_largest_integers_do_not_wrap(variant):
    """Every product at its end: weights and activations all of one sign, then of the other."""
    weight = random_blocks(np.random.default_rng(0), variant, 4, 32)
    head = BLOCK_BYTES[variant] - (32 if variant == "q8_0" else 16)
    weight[:, :2] = np.array([1.0], np.float16).view(np.uint8)
    if variant == "q4_1":
        weight[:, 2:4] = 0
    ends = [0x80, 0x7F, 0x80, 0x7F] if variant == "q8_0" else [0x00, 0xFF, 0x00, 0xFF]
    weight[:, head:] = np.array(ends, np.uint8)[:, None]
    xq = np.repeat(np.array([[127], [-127], [-128]], np.int8), 32, axis=1)
    activations = int8_activations(xq, np.ones((3, 1), np.float32))
    out = nans(3, 4)
    run("matmul_int8", variant, "tuned", out=out, weight=packed(weight, variant), **activations)
    assert np.array_equal(out, xq.astype(np.float64) @ values_of(weight, variant).T)


@pytest.mark.parametrize("face", ["python", "cpu", "tuned"])
def test_a_nan_reaches_every_output_of_its_token(face):
    weight, activations = int8_case("q8_0", (3, 17, 64))
    activations["xs"][1, 1] = np.nan
    activations["xtotal"][1, 1] = np.nan
    activations["xq"][1, 32:] = 0
    activations["xsum"][1, 2:] = 0
    out = np.zeros((3, 17), np.float32)
    given = packed(weight, "q8_0") if face == "tuned" else weight
    run("matmul_int8", "q8_0", face, out=out, weight=given, **activations)
    assert np.isnan(out[1]).all()
    assert np.isfinite(out[[0, 2]]).all()
