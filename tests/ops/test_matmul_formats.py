"""Tuned matrix products in every quantised format, against float64 products of what the gguf
package reads in the weight."""

import numpy as np
import pytest
from format_blocks import extreme_weight, parts_of, random_weight, values_of
from op_faces import EPS, close, int8_activations, nans, packed, run

from kernels_cpu import QUANTISED, TUNED
from llama3jit.files.formats import FORMATS

BLOCK = {variant: FORMATS[variant.upper()].block_size for variant in QUANTISED}
# Columns that share a scale.
SPAN = dict.fromkeys(QUANTISED, 32) | dict.fromkeys(("q2_k", "q3_k", "q6_k"), 16)
# Tokens and rows of the weight. Tiles take 6, 2 or 1 tokens (narrow registers: 2 or 1) and 32 rows.
# From 16 tokens on they take 8 (narrow: 2; tile registers: 16), at most 128 to an item.
SIZES = [(1, 1), (2, 17), (3, 33), (4, 50), (5, 31), (6, 64), (7, 15), (13, 47)]
SHAPES = [(*size, blocks) for blocks in (1, 3) for size in SIZES]
SHAPES += [(16, 33, 17), (39, 40, 17), (145, 20, 2)]  # 17 blocks are more than one panel


def cases(tuned=SHAPES, portable=((3, 5, 1), (2, 3, 2))):
    faces = {"tuned": tuned, "cpu": portable, "python": portable[:1]}
    return [
        pytest.param(face, variant, shape, id=f"{face}-{variant}-{'x'.join(map(str, shape))}")
        for variant in QUANTISED
        for face, shapes in faces.items()
        for shape in shapes
    ]


def product(name, face, variant, weight, n_tokens, **activations):
    """What that face computes; the weight is as it lies in a file."""
    out = nans(n_tokens, len(weight))
    given = packed(weight, variant) if face == "tuned" else weight
    run(name, variant, face, out=out, weight=given, **activations)
    return out


@pytest.mark.parametrize(("face", "variant", "shape"), cases())
def test_matmul(face, variant, shape):
    n_tokens, n, k = *shape[:2], shape[2] * BLOCK[variant]
    rng = np.random.default_rng(shape)
    weight = random_weight(rng, variant, n, k)
    x = rng.standard_normal((n_tokens, k)).astype(np.float32)
    found = product("matmul", face, variant, weight, n_tokens, x=x)
    w = values_of(weight, variant).astype(np.float64)
    if face == "tuned":
        # Weights have the package's bits; then one rounding a column, and one to spare.
        bound = (k + 1) * EPS * (np.abs(x.astype(np.float64)) @ np.abs(w).T)
    else:
        # A product and a sum a column; a compiler may multiply by the parts of a weight.
        sizes = sum(np.abs(part) for part in parts_of(weight, variant))
        bound = (k + 4) * EPS * (np.abs(x.astype(np.float64)) @ sizes.T)
    close(found, x.astype(np.float64) @ w.T, bound)


def random_activations(rng, n_tokens, k):
    """Values at their ends for the first token, and scales of many sizes and 0."""
    xq = rng.integers(-127, 128, (n_tokens, k)).astype(np.int8)
    xq[0] = 127 * rng.choice([-1, 1], k)
    xs = np.exp(rng.standard_normal((n_tokens, k // 32))).astype(np.float32)
    xs[-1, 0] = 0
    return int8_activations(xq, xs)


def widened(activations, width=64):
    """With rows of xq that are farther apart than they are long."""
    xq = activations["xq"]
    wider = np.full((len(xq), xq.shape[1] + width), 99, np.int8)
    wider[:, : xq.shape[1]] = xq
    return {**activations, "xq": wider}


def int8_truth(weight, variant, xq, xs):
    """The products in float64, and how far from them a tuned kernel may be, [T, N] each.

    Sums over a span are whole numbers; a span adds one product of such a sum with a scale, and one
    with a minimum where there are minima. Scales times scales and totals are rounded once, then
    each addition once; one rounding to spare.
    """
    span = SPAN[variant]
    steps, minima = (part.reshape(len(weight), -1, span) for part in parts_of(weight, variant))
    xq = xq.reshape(len(xq), -1, span).astype(np.float64)
    scales = np.repeat(xs.astype(np.float64), 32 // span, axis=1)[:, None, :]
    terms = [np.einsum("tsk,nsk->tns", xq, part) * scales for part in (steps, minima)]
    n_terms = steps.shape[1] * (2 if minima.any() else 1)
    sizes = sum(np.abs(term).sum(axis=2) for term in terms)
    return sum(term.sum(axis=2) for term in terms), (n_terms + 2) * EPS * sizes


@pytest.mark.parametrize(("face", "variant", "shape"), cases())
def test_matmul_int8(face, variant, shape):
    n_tokens, n, k = *shape[:2], shape[2] * BLOCK[variant]
    rng = np.random.default_rng(shape)
    weight = random_weight(rng, variant, n, k)
    activations = random_activations(rng, n_tokens, k)
    found = product("matmul_int8", face, variant, weight, n_tokens, **widened(activations))
    truth, bound = int8_truth(weight, variant, activations["xq"], activations["xs"])
    if face != "tuned":
        # Three products and sums a column; a compiler may multiply by the parts of a weight.
        x = np.abs(activations["xq"].astype(np.float64))
        x *= np.repeat(activations["xs"], 32, axis=1)
        sizes = sum(np.abs(part) for part in parts_of(weight, variant))
        bound = (k + 6) * EPS * (x @ sizes.T)
    close(found, truth, bound)


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("variant", QUANTISED)
def test_numbers_at_their_ends(variant, blocks):
    """Nothing wraps, saturates or takes a sign for a bit: quants and small scales all ones, all
    zeros and halves of each, activations at both ends."""
    rng = np.random.default_rng(blocks)
    k = blocks * BLOCK[variant]
    weight = extreme_weight(rng, variant, 39, k)
    xq = rng.choice([-128, -127, 127], (23, k)).astype(np.int8)
    xq[:3] = np.array([[127], [-127], [-128]])
    activations = int8_activations(xq, np.ones((23, k // 32), np.float32))
    found = product("matmul_int8", "tuned", variant, weight, 23, **activations)
    truth, bound = int8_truth(weight, variant, xq, activations["xs"])
    close(found, truth, bound)
    small = bound < 2 * EPS * 2**24  # sums of whole numbers that float32 has
    assert np.array_equal(found[small], truth[small])
    exact = product("matmul", "tuned", variant, weight, 23, x=xq.astype(np.float32))
    w = values_of(weight, variant).astype(np.float64)
    close(exact, xq @ w.T, (k + 1) * EPS * (np.abs(xq.astype(np.float64)) @ np.abs(w).T))


@pytest.mark.parametrize("variant", ["q4_k", "q6_k", "mxfp4", "q5_0"])
def test_scales_of_zero_and_next_to_nothing(variant):
    """Halves may be denormal; MXFP4's powers go down to 2^-128, which float32 has as a denormal."""
    rng = np.random.default_rng(2)
    k = BLOCK[variant]
    weight = random_weight(rng, variant, 33, k)
    at = {"q6_k": 208}.get(variant, 0)
    if variant == "mxfp4":
        weight[:, 0] = np.arange(33) * 4
    else:
        tiny = np.array([0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400], np.uint16)
        weight[:, at : at + 2] = np.resize(tiny, 33).view(np.uint8).reshape(-1, 2)
    activations = random_activations(rng, 3, k)
    found = product("matmul_int8", "tuned", variant, weight, 3, **activations)
    truth, bound = int8_truth(weight, variant, activations["xq"], activations["xs"])
    close(found, truth, bound + 2.0**-126)
    x = rng.standard_normal((3, k)).astype(np.float32)
    exact = product("matmul", "tuned", variant, weight, 3, x=x)
    w = values_of(weight, variant).astype(np.float64)
    bound = (k + 1) * EPS * (np.abs(x.astype(np.float64)) @ np.abs(w).T)
    close(exact, x.astype(np.float64) @ w.T, bound + 2.0**-126)


@pytest.mark.parametrize(
    ("name", "variant"),
    [(name, v) for name in ("matmul", "matmul_int8") for v in TUNED[name][1]],
)
def test_an_output_does_not_depend_on_its_tile(name, variant):
    """A token alone and among others: the same bits."""
    rng = np.random.default_rng(9)
    k = 2 * BLOCK.get(variant, 48)
    weight = random_weight(rng, variant, 50, k)
    activations = {"x": rng.standard_normal((103, k)).astype(np.float32)}
    if name == "matmul_int8":
        activations = random_activations(rng, 103, k)
    whole = product(name, "tuned", variant, weight, 103, **activations)
    for first, last in [(0, 1), (1, 3), (5, 12), (90, 103), (95, 97)]:
        mine = {key: np.ascontiguousarray(value[first:last]) for key, value in activations.items()}
        part = product(name, "tuned", variant, weight, last - first, **mine)
        assert np.array_equal(part, whole[first:last])


@pytest.mark.parametrize("variant", QUANTISED)
def test_a_nan_reaches_every_output_of_its_token(variant):
    rng = np.random.default_rng(4)
    k = 2 * BLOCK[variant]
    weight = random_weight(rng, variant, 17, k)
    xq = rng.integers(-127, 128, (3, k)).astype(np.int8)
    xq[1, :32] = 0  # as `quantize` leaves a block whose scale is NaN
    xs = np.ones((3, k // 32), np.float32)
    xs[1, 0] = np.nan
    out = product("matmul_int8", "tuned", variant, weight, 3, **int8_activations(xq, xs))
    assert np.isnan(out[1]).all()
    assert np.isfinite(out[[0, 2]]).all()
