"""The portable ops as the CPU device compiles them: embeddings in every format, products in those
that have no tuned kernel."""

import numpy as np
import pytest
from format_blocks import random_weight, values_of
from op_faces import EPS, close, nans, run_compiled, unit_of
from test_dequantise import bits, blocks_of

from kernels_cpu import TUNED
from llama3jit.compile.library import Library
from llama3jit.devices.cpu.pool import WALKER, Pool
from llama3jit.ops.dequantise import FORMATS

# The others are in test_matmul.py and test_matmul_formats.py.
PORTABLE = [variant for variant in FORMATS if variant not in TUNED["matmul"][1]]


@pytest.fixture(scope="module")
def machine():
    units = [unit_of("embed", v, "cpu") for v in FORMATS]
    units += [unit_of("matmul", v, "cpu") for v in PORTABLE]
    library = Library([WALKER, *units])
    return library, Pool(2, library)


@pytest.mark.parametrize("variant", FORMATS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_embed_gives_the_values_to_the_bit(machine, variant):
    """Whatever the compiler fuses or reorders: products of a value's parts are exact. Its licence
    to ignore the sign of zeros is the one difference."""
    blocks = blocks_of(variant)
    weight = blocks[: len(blocks) // 4 * 4].reshape(-1, 4 * blocks.shape[1])
    expected = values_of(weight, variant)
    tokens = np.arange(len(weight), dtype=np.int32)[::-1].copy()
    out = np.zeros((len(tokens), expected.shape[1]), np.float32)
    operands = {"out": out, "weight": weight, "tokens": tokens}
    run_compiled(*machine, unit_of("embed", variant, "cpu"), operands)
    zero = np.float32(0)
    assert np.array_equal(bits(out + zero), bits(expected[tokens] + zero))


@pytest.mark.parametrize("variant", PORTABLE)
def test_matmul(machine, variant):
    rng = np.random.default_rng(7)
    weight = random_weight(rng, variant, 13, 768)
    x = rng.standard_normal((3, 768)).astype(np.float32)
    out = nans(3, 13)
    run_compiled(
        *machine, unit_of("matmul", variant, "cpu"), {"out": out, "weight": weight, "x": x}
    )
    w = values_of(weight, variant).astype(np.float64)
    bound = (768 + 2) * EPS * (np.abs(x.astype(np.float64)) @ np.abs(w).T)
    close(out, x.astype(np.float64) @ w.T, bound)
