"""Every op compiles for a GPU as it is written; no GPU is needed for that."""

from __future__ import annotations

import importlib.util
import warnings
from types import SimpleNamespace

import pytest

from llama3jit import ops
from llama3jit.ops.signature import DTYPES

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("numba_cuda") is None,
    reason="numba-cuda is not installed (pip install 'llama3jit[cuda-jit]')",
)

CASES = [(name, variant) for name in ops.MODULES for variant in ops.find(name).variants]


@pytest.fixture(scope="module")
def cuda():
    """numba.cuda, told of a device that is not there: device functions ask for its capability."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from numba import cuda
        from numba.cuda import api, dispatcher

    device = SimpleNamespace(compute_capability=(9, 0), id=0)
    with pytest.MonkeyPatch.context() as patch:
        for module in (api, dispatcher):
            patch.setattr(module, "get_current_device", lambda: device)
        yield cuda


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "variant"), CASES)
def test_an_op_compiles_to_ptx(cuda, name, variant):
    op = ops.find(name)
    arguments = []
    for parameter in op.signature.parameters:
        if not parameter.is_function:
            dtype = op.variants[variant].get(parameter.dtype, parameter.dtype)
            scalar = getattr(cuda.types, DTYPES[dtype])
            n = len(parameter.dims)
            arguments.append(cuda.types.Array(scalar, n, "C") if n else scalar)
    signature = (*arguments, cuda.types.int64)
    kernel = op.cuda(variant).py_func
    ptx, _ = cuda.compile(kernel, signature, cc=(9, 0), device=False, abi="numba", output="ptx")
    assert ".visible .entry" in ptx
    assert ".target sm_90" in ptx
