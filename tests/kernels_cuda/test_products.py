"""Packing and matrix products on a GPU, against float64."""

import numpy as np
import pytest
from kernel_runs import error, int8_buffers, nans, random_weight

import kernels_cuda
from llama3jit import ops
from llama3jit.ops.dequantise import VALUES, rows

pytestmark = pytest.mark.gpu

SHAPES = [(16, 1), (1, 1), (40, 3), (129, 5), (272, 9)]  # rows, and whole blocks of 256 columns
BLOCKS_OF_32 = ("q4_0", "q4_1", "q8_0")
TOKENS = [1, 2, 7, 8, 13, 32, 33, 64]


def quantised(rng, t, k):
    x = rng.standard_normal((t, k)).astype(np.float32) * rng.uniform(0.1, 3, (t, 1))
    made = int8_buffers(t, k)
    ops.find("quantize").numpy(**made, x=x.astype(np.float32))
    return made


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("variant", kernels_cuda.INT8)
def test_int8_products(gpu, variant, tokens):
    rng = np.random.default_rng(tokens)
    for n, blocks in SHAPES:
        for k in (
            256 * blocks,
            *([32 * blocks, 32 * blocks + 96] if variant in BLOCKS_OF_32 else []),
        ):
            weight = random_weight(rng, variant, n, k)
            packed = gpu.packed(weight, variant, n, k)
            made = quantised(rng, tokens, k)
            found = gpu.run("matmul_int8", variant, out=nans(tokens, n), weight=packed, **made)
            x = made["xq"].astype(np.float64) * np.repeat(made["xs"], 32, axis=1)
            w = rows(weight, variant).astype(np.float64).T
            # Against what sums of such products are: a single one may come out as all but zero.
            size = np.linalg.norm(np.sqrt(x**2 @ w**2))
            assert np.linalg.norm(found["out"] - x @ w) < 2e-6 * size, (n, k)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("variant", kernels_cuda.FLOATS)
def test_products_of_halves(gpu, variant, tokens):
    rng = np.random.default_rng(tokens)
    for n, k in [(16, 64), (1, 1024), (130, 576), (40, 100), (300, 2085)]:
        weight = random_weight(rng, variant, n, k)
        packed = gpu.packed(weight, variant, n, k)
        x = rng.standard_normal((tokens, k)).astype(np.float32)
        found = gpu.run("matmul", variant, out=nans(tokens, n), weight=packed, x=x)
        rounded = x.astype(np.float16) if variant == "f16" else nearest_bfloat(x)
        expected = rounded.astype(np.float64) @ rows(weight, variant).astype(np.float64).T
        assert error(found["out"], expected) < 2e-6, (n, k)


MANY = [(9, 16), (16, 40), (24, 72), (33, 129), (64, 272), (100, 130), (129, 64), (300, 257)]


@pytest.mark.parametrize(("tokens", "n"), MANY)
@pytest.mark.parametrize("variant", [*kernels_cuda.INT8, *kernels_cuda.FLOATS])
def test_products_of_many_tokens(gpu, variant, tokens, n):
    rng = np.random.default_rng(tokens)
    exact = variant in kernels_cuda.FLOATS
    for k in (
        256,
        768,
        2304,
        *([100, 640] if exact else [64, 96, 640] if variant in BLOCKS_OF_32 else []),
    ):
        weight = random_weight(rng, variant, n, k)
        packed = gpu.packed(weight, variant, n, k)
        x = rng.standard_normal((tokens, k)).astype(np.float32)
        size = -(-tokens // 128) * -(-k // 256) * 128 * 256
        kind = "bf16" if variant == "bf16" else "f16"
        xh = gpu.run("halve", kind, xh=np.full(size, 0x7E00, np.uint16), x=x)["xh"]
        found = gpu.run("matmul_halves", variant, out=nans(tokens, n), weight=packed, xh=xh, K=k)
        rounded = nearest_bfloat(x) if kind == "bf16" else x.astype(np.float16)
        expected = rounded.astype(np.float64) @ rows(weight, variant).astype(np.float64).T
        # Sums are cut, not rounded, to 24 bits after each 16 columns; quantised weights are rounded
        # to halves.
        assert error(found["out"], expected) < (k / 16 * 2.0**-24 if exact else 5e-4), k


def nearest_bfloat(x):
    bits = x.view(np.uint32).astype(np.uint64)
    nearest = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return VALUES["bf16"](nearest.astype(np.uint16).view(np.uint8))


@pytest.mark.parametrize("k", [1024, 2304, 4352, 14336])
@pytest.mark.parametrize("variant", kernels_cuda.INT8)
def test_a_token_does_not_depend_on_the_others(gpu, variant, k):
    rng = np.random.default_rng(5)
    n = 16 * 132 * 3 - 16 * 40 if k == 2304 else 72  # rounds of blocks, the last one half full
    weight = random_weight(rng, variant, n, k)
    packed = gpu.packed(weight, variant, n, k)
    made = quantised(rng, 40, k)

    def product(tokens):
        some = {name: array[tokens] for name, array in made.items()}
        count = len(some["xq"])
        return gpu.run("matmul_int8", variant, out=nans(count, n), weight=packed, **some)["out"]

    together = product(slice(0, 40))
    for tokens in (slice(0, 1), slice(39, 40), slice(3, 11), slice(8, 21), slice(5, 37)):
        assert product(tokens).tobytes() == together[tokens].tobytes()


@pytest.mark.parametrize("shape", [(1, 32), (3, 96), (7, 4096), (2, 1056)])
def test_quantize(gpu, shape):
    rng = np.random.default_rng(shape)
    x = rng.standard_normal(shape).astype(np.float32)
    x[0, :32] = 0
    made = int8_buffers(*shape)
    found = gpu.run("quantize", **made, x=x)
    ops.find("quantize").numpy(**made, x=x)
    for name, expected in made.items():
        assert np.array_equal(found[name], expected), name


def test_quantize_of_a_nan(gpu):
    x = np.ones((2, 64), np.float32)
    x[1, 40] = np.nan
    found = gpu.run("quantize", **int8_buffers(2, 64), x=x)
    assert np.isnan(found["xs"]).tolist() == [[False, False], [False, True]]
