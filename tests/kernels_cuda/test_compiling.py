"""Every tuned GPU kernel compiles, with no GPU: nothing spills, and products stay in registers."""

import pytest
from compiling import assemble, ptx_of, ptxas

import kernels_cuda


CASES = [
    (op, variant) for op, (_, variants) in kernels_cuda.TUNED.items() for variant in variants
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
