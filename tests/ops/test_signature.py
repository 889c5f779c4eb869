"""Signatures read off annotations, and the faces of an op."""

# ruff: noqa: F821

import subprocess
import sys

import numpy as np
import pytest

from llama3jit.ops.op import Op, op
from llama3jit.ops.signature import Parameter, parse


def test_what_annotations_say():
    def body(out: "f32[T, heads, 2]", x: "kv[T, n]", eps: "f32", read: "function", items: "T * n"):
        pass

    signature = parse(body)
    assert signature.parameters == (
        Parameter("out", "f32", ("T", "heads", "2")),
        Parameter("x", "kv", ("T", "n")),
        Parameter("eps", "f32"),
        Parameter("read", ""),
    )
    assert [p.is_array for p in signature.parameters] == [True, True, False, False]
    assert [p.is_function for p in signature.parameters] == [False, False, False, True]
    assert signature.dims == ("T", "heads", "n")
    assert signature.count({"T": 3, "n": 5}) == 15


def test_what_cannot_be_read_is_named():
    def no_items(out: "f32[n]"):
        pass

    def odd(out: "list", items: "n"):
        pass

    with pytest.raises(TypeError, match="no_items: its last parameter must be `items`"):
        parse(no_items)
    with pytest.raises(TypeError, match="odd: cannot read the annotation out: list"):
        parse(odd)


def test_an_op_is_its_python_function_and_imports_no_numba():
    code = (
        "import sys, numpy as np\n"
        "from llama3jit import ops\n"
        "out, x = np.ones((2, 3), np.float32), np.ones((2, 3), np.float32)\n"
        "ops.find('add')(out, x, range(1, 2))\n"
        "assert out.tolist() == [[1, 1, 1], [2, 2, 2]]\n"
        "assert repr(ops.find('add')) == '<op add>'\n"
        "assert 'numba' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def helper(x):
    return x + np.float32(1)


@op
def twice(out: "f32[n]", x: "f32[n]", items: "n"):
    for i in items:
        out[i] = helper(x[i]) * np.float32(2)


def test_a_face_is_made_once_and_takes_helpers_along():
    assert isinstance(twice, Op)
    face = twice.njit()
    assert twice.njit() is face
    out, x = np.full(5, np.nan, np.float32), np.arange(5, dtype=np.float32)
    face(out, x, 5)
    assert out.tolist() == [2, 4, 6, 8, 10]
    face(out, x, 0)
