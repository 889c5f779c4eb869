"""Tuned GPU kernels compile, with no GPU: nothing spills, and products stay in registers."""

import importlib.util

import pytest
from compiling import assemble, ptx_of, ptxas

import kernels_cuda

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("numba_cuda") is None,
    reason="numba-cuda is not installed (pip install 'llama3jit[cuda-jit]')",
)
# Products and embeddings have many variants: the widest of some formats here, all of them slowly.
MANY = ("embed", "matmul", "matmul_halves", "matmul_int8", "pack")
QUICK = ("f16:8", "f16:256", "q8_0:1", "q6_k:8", "q4_k:256", "q5_k", "iq4_xs", "q6_k")
CASES = [
    pytest.param(
        op, variant, marks=[pytest.mark.slow] if op in MANY and variant not in QUICK else []
    )
    for op, (_, variants) in kernels_cuda.TUNED.items()
    for variant in variants
]
# Of double precision, whose reduction of large arguments keeps a table.
STACK = {"rope_angles"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("op", "variant"), CASES)
def test_a_kernel_compiles(op, variant):
    text = ptx_of(op, variant)
    assert text.count(".visible .entry") == 1
    if ptxas() is None:
        pytest.skip("there is no ptxas")
    code, figures = assemble(text)
    assert code[:4] == b"\x7fELF"
    assert figures["spills"] == 0
    assert figures["stack"] == 0 or op in STACK
    assert figures["registers"] <= 255


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("arch", ["sm_80", "sm_120"])
@pytest.mark.parametrize(("op", "variant"), [("matmul_int8", "q4_k:8"), ("attention", "f16:128")])
def test_a_kernel_compiles_for_other_gpus(op, variant, arch):
    text = ptx_of(op, variant, arch)
    if ptxas() is None:
        pytest.skip("there is no ptxas")
    assert assemble(text, arch)[1]["spills"] == 0


@pytest.mark.parametrize("name", [*kernels_cuda.INT8, *kernels_cuda.FLOATS])
def test_every_number_of_tokens_has_a_product_that_fits_into_shared_memory(name):
    for tokens in range(9, 300):
        dims = {"T": tokens, "N": 4096, "K": 4096, "size": 0}
        variant = kernels_cuda.variant_of("matmul_halves", name, dims)
        assert variant in kernels_cuda.TUNED["matmul_halves"][1]
        launch = kernels_cuda.launch("matmul_halves", variant, dims)
        # A kilobyte is static.
        assert launch.shared + 1024 <= 227 * 1024


def test_shapes_of_launches_need_no_compiler():
    dims = {"T": 1, "N": 4096, "K": 4096}
    launch = kernels_cuda.launch("matmul_int8", "q4_0:1", dims)
    assert launch.grid == (kernels_cuda.PROCESSORS[0], 1, 1)
    assert launch.shared <= 227 * 1024
    assert kernels_cuda.variant_of("matmul_int8", "q4_0", dims) == "q4_0:1"
    assert kernels_cuda.variant_of("matmul", "f16", {**dims, "T": 8, "K": 14336}) == "f16:16"
    assert kernels_cuda.variant_of("matmul_int8", "q2_k", dims) is None
    assert kernels_cuda.variant_of("attention", "f16", {"T": 9, "head_dim": 80}) is None
