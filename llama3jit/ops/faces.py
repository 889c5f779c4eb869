"""The compiled faces of a function.

A function names its helpers as plain globals. For each face it is rebuilt with those globals
replaced: helpers by their compiled selves, a `Faced` by its own form for that face, and whatever a
variant binds.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from llama3jit.ops.op import Op


@dataclass(frozen=True, slots=True)
class Faced:
    """A function with a form for each face: a call runs the Python one; compiled code takes the
    form at `cpu` or `cuda`, written "module:name"."""

    python: Callable[..., Any]
    cpu: str
    cuda: str

    def __call__(self, *arguments: Any) -> Any:
        return self.python(*arguments)

    def form(self, face: str) -> Any:
        module, name = (self.cuda if face == "cuda" else self.cpu).split(":")
        return getattr(import_module(module), name)


@dataclass(frozen=True, slots=True)
class Specialised:
    """A function with some names fixed, in it and in all that it calls."""

    function: Callable[..., Any]
    constants: tuple[tuple[str, Any], ...]


def specialise(function: Callable[..., Any], **constants: Any) -> Specialised:
    """`function` for compiled code alone, with these globals in it and in all that it calls."""
    return Specialised(function, tuple(sorted(constants.items())))


Jit = Callable[[Callable[..., Any]], Any]


class Rebuilder:
    """Rebuilds functions for one face, each once for one set of names that are fixed."""

    def __init__(self, face: str, jit: Jit) -> None:
        self.face = face
        self.jit = jit
        self._done: dict[Any, Any] = {}

    def compiled(self, value: Any, fixed: Mapping[str, Any]) -> Any:
        """What stands for a global of this value in compiled code."""
        if isinstance(value, Faced):
            return value.form(self.face)
        if isinstance(value, Specialised):
            return self.compiled(value.function, {**fixed, **dict(value.constants)})
        if isinstance(value, types.FunctionType):
            key = (value, tuple((name, id(given)) for name, given in sorted(fixed.items())))
            if key not in self._done:
                self._done[key] = self.jit(self.rebuild(value, fixed))
            return self._done[key]
        return value

    def rebuild(self, function: types.FunctionType, fixed: Mapping[str, Any]) -> Any:
        """The same code over replaced globals."""
        space: dict[str, Any] = {"__builtins__": function.__globals__["__builtins__"]}
        for name in _global_names(function.__code__):
            if name in fixed:
                space[name] = self.compiled(fixed[name], fixed)
            elif name in function.__globals__:
                space[name] = self.compiled(function.__globals__[name], fixed)
        rebuilt = types.FunctionType(
            function.__code__, space, function.__name__, function.__defaults__
        )
        rebuilt.__module__ = function.__module__
        return rebuilt


def _global_names(code: types.CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _global_names(constant)
    return names


def body(op: Op, variant: str, face: str, jit: Jit) -> tuple[Any, dict[str, Any]]:
    """The compiled body of an op, and its function parameters in compiled form."""
    bindings = op.variants[variant]
    rebuilder = Rebuilder(face, jit)
    functions = {
        parameter.name: rebuilder.compiled(bindings[parameter.name], bindings)
        for parameter in op.signature.parameters
        if parameter.is_function
    }
    assert isinstance(op.function, types.FunctionType)
    return rebuilder.compiled(op.function, bindings), functions


def njit_face(op: Op, variant: str) -> Any:
    """`face(*arrays_and_scalars, count)`: each thread gets a slice of the items."""
    import numba

    options = {"fastmath": set(op.fastmath), "error_model": "numpy"}
    run, functions = body(op, variant, "cpu", numba.njit(nogil=True, **options))
    source = (
        "def face({given}, count):\n"
        "    threads = get_num_threads()\n"
        "    for thread in prange(threads):\n"
        "        run({all}, range(count * thread // threads, count * (thread + 1) // threads, 1))\n"
    )
    space = {"run": run, "prange": numba.prange, "get_num_threads": numba.get_num_threads}
    return numba.njit(parallel=True, **options)(_write(op, source, {**space, **functions}))


def cuda_face(op: Op, variant: str) -> Any:
    """`face[blocks, threads](*arrays_and_scalars, count)`: each thread strides over the items."""
    from numba import cuda

    run, functions = body(op, variant, "cuda", cuda.jit(device=True))
    source = (
        "def face({given}, count):\n    run({all}, range(cuda.grid(1), count, cuda.gridsize(1)))\n"
    )
    return cuda.jit(_write(op, source, {"run": run, "cuda": cuda, **functions}))


def run_cuda(op: Op, variant: str, values: list[Any], count: int) -> None:
    """Run the op's cuda.jit face once: arrays go to the GPU, the outputs come back."""
    from numba import cuda

    there = [cuda.to_device(v) if isinstance(v, np.ndarray) else v for v in values]
    kernel: Any = op.cuda(variant)
    kernel[64, 128](*there, count)
    for output, array in zip(there, values[: op.outputs], strict=False):
        output.copy_to_host(array)


def _write(op: Op, source: str, space: dict[str, Any]) -> Callable[..., None]:
    """The function that `source` defines, over the globals `space`."""
    parameters = op.signature.parameters
    given = ", ".join(p.name for p in parameters if not p.is_function)
    every = ", ".join(p.name for p in parameters)
    exec(source.format(given=given, all=every), space)
    face: Callable[..., None] = space["face"]
    face.__name__ = op.name
    return face
