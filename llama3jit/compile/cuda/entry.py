"""The kernel of a portable op: arrays made out of addresses and sizes, and for each GPU thread a
strided range of the op's items.

Every kernel, tuned or portable, takes the op's parameters in their order (an array as its address,
int64; a scalar as float32 or int64), then each named dim of its annotations, int64, in order of
first appearance.
"""

from __future__ import annotations

from typing import Any

from llama3jit.compile.entry import dtype_of
from llama3jit.ops.op import Op
from llama3jit.ops.signature import Signature


def argument_kinds(signature: Signature) -> list[str]:
    """What each argument of a kernel is, i64 or f32."""
    given = [p for p in signature.parameters if not p.is_function]
    kinds = ["i64" if p.is_array or p.dtype == "i64" else "f32" for p in given]
    return kinds + ["i64"] * len(signature.dims)


def kernel_source(op: Op, variant: str) -> str:
    """Python source of the kernel, over `run`, `cuda`, the views and the op's functions."""
    given, arguments = [], []
    for parameter in op.signature.parameters:
        if not parameter.is_function:
            given.append(f"given_{parameter.name}")
        if parameter.is_array:
            view = f"view_{dtype_of(op, variant, parameter)}_{len(parameter.dims)}"
            arguments.append(f"{view}(given_{parameter.name}, {', '.join(parameter.dims)})")
        else:
            arguments.append(parameter.name if parameter.is_function else given[-1])
    return (
        f"def kernel({', '.join([*given, *op.signature.dims])}):\n"
        f"    items = range(cuda.grid(1), {op.signature.items}, cuda.gridsize(1))\n"
        f"    run({', '.join(arguments)}, items)\n"
    )


def portable_kernel(op: Op, variant: str) -> Any:
    """The kernel as a plain function, for numba's CUDA compiler. Imports numba-cuda."""
    from numba import cuda

    from kernels_cuda import arrays
    from llama3jit.ops import faces

    fastmath = {"contract"} & set(op.fastmath)
    jit = cuda.jit(device=True, fastmath=bool(fastmath))
    run, functions = faces.body(op, variant, "cuda", jit)
    space = {"run": run, "cuda": cuda, **functions}
    for parameter in op.signature.parameters:
        if parameter.is_array:
            dtype, ndim = dtype_of(op, variant, parameter), len(parameter.dims)
            space[f"view_{dtype}_{ndim}"] = arrays.viewer(dtype, ndim)
    exec(kernel_source(op, variant), space)
    return space["kernel"]
