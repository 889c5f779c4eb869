"""The compiled form of an op: `entry(row, first, end)` and `count(row)`.

A row is the op's address, its count's address, the row's bytes and the barrier flag, then a word
for each parameter (an array's address, or a scalar) and a word for each named dim: the address of
an int64, so that a dim may change between passes while the row stays.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from llama3jit.ops.op import Op
from llama3jit.ops.signature import DTYPES, Parameter

WORD = 8
HEADER_WORDS = 4


@cache
def words(op: Op) -> dict[str, int]:
    """Word index of every parameter that is not a function, and of every dim as "dim NAME"."""
    names = [p.name for p in op.signature.parameters if not p.is_function]
    names += [f"dim {dim}" for dim in op.signature.dims]
    return {name: HEADER_WORDS + i for i, name in enumerate(names)}


def dtype_of(op: Op, variant: str, parameter: Parameter) -> str:
    """The NumPy name of a parameter's dtype, open ones bound by the variant."""
    return DTYPES[op.variants[variant].get(parameter.dtype, parameter.dtype)]


def entry_source(op: Op, variant: str) -> str:
    """Python source of `entry` and `count`, over `run`, the views and the loads."""
    index = words(op)
    dims = "\n".join(
        f"    {dim} = load_i64(load_i64(row + {WORD * index[f'dim {dim}']}))"
        for dim in op.signature.dims
    )
    arguments = []
    for parameter in op.signature.parameters:
        if parameter.is_function:
            arguments.append(parameter.name)
            continue
        at = f"row + {WORD * index[parameter.name]}"
        dtype = dtype_of(op, variant, parameter)
        if parameter.is_array:
            shape = ", ".join(parameter.dims)
            arguments.append(f"view_{dtype}_{len(parameter.dims)}(load_i64({at}), {shape})")
        else:
            arguments.append(f"load_{parameter.dtype}({at})")
    return (
        f"def entry(row, first, end):\n{dims}\n"
        f"    run({', '.join(arguments)}, range(first, end, 1))\n"
        f"    return 0\n"
        f"def count(row):\n{dims}\n"
        f"    return {op.signature.items}\n"
    )


def compiled_entry(op: Op, variant: str) -> tuple[Any, Any]:
    """`entry` and `count` as njit dispatchers. Imports numba."""
    import numba

    from kernels_cpu import memory
    from llama3jit.ops import faces

    options = {"nogil": True, "error_model": "numpy", "boundscheck": False, "_nrt": False}
    jit: Callable[..., Any] = numba.njit(fastmath=set(op.fastmath), **options)
    run, functions = faces.body(op, variant, "cpu", jit)
    space = {"run": run, "load_i64": memory.load_i64, "load_f32": memory.load_f32, **functions}
    for parameter in op.signature.parameters:
        if parameter.is_array:
            dtype, ndim = dtype_of(op, variant, parameter), len(parameter.dims)
            space[f"view_{dtype}_{ndim}"] = memory.viewer(dtype, ndim)
    exec(entry_source(op, variant), space)
    return jit(space["entry"]), jit(space["count"])
