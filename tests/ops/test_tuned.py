"""A tuned kernel has its op's name, parameters and variants."""

from importlib import import_module

import pytest

from kernels_cpu import TUNED
from llama3jit import ops
from llama3jit.compile.entry import dtype_of

ENTRIES = [(name, variant) for name, (_, variants) in TUNED.items() for variant in variants]


def test_every_op_is_found_under_its_name():
    for name in ops.MODULES:
        assert ops.find(name).name == name
        assert ops.find(name).numpy is not None
        assert ops.find(name).__doc__ is None or ops.find(name).function.__doc__


@pytest.mark.parametrize(("name", "variant"), ENTRIES)
def test_a_tuned_kernel_takes_what_its_op_takes(name, variant):
    tuned, op = getattr(import_module(TUNED[name][0]), name), ops.find(name)
    assert variant in tuned.variants
    assert variant in op.variants
    given = [[p for p in o.signature.parameters if not p.is_function] for o in (tuned, op)]
    for mine, theirs in zip(*given, strict=True):
        assert (mine.name, mine.dims) == (theirs.name, theirs.dims)
        assert dtype_of(tuned, variant, mine) == dtype_of(op, variant, theirs)
    assert tuned.outputs == op.outputs
    assert tuned.signature.dims == op.signature.dims
