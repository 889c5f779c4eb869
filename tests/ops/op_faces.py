"""Runs one op on arrays, on any of its faces.

A face is "python" (the function as it is written), "njit", "reference" (NumPy), "cpu" (the portable
op as the CPU device runs it: compiled ahead of time, walked by a pool) or "tuned" (its tuned
kernel, run in the same way). Operands are given by name in the order of the signature.
"""

from __future__ import annotations

import inspect
import types
from functools import cache
from typing import Any

import numpy as np

from kernels_cpu import TUNED
from llama3jit import ops
from llama3jit.compile.library import Library
from llama3jit.compile.units import Unit
from llama3jit.devices.cpu.assemble import Dims, assemble
from llama3jit.devices.cpu.pool import WALKER, Pool
from llama3jit.model.plan import Operand, Row
from llama3jit.ops.dequantise import FORMATS
from llama3jit.ops.pack import padded_rows
from llama3jit.ops.signature import DTYPES

EPS = 2.0**-24  # half a unit in the last place of a float32 in [1, 2)


def unit_of(name: str, variant: str, face: str) -> Unit:
    module = TUNED[name][0] if face == "tuned" else f"llama3jit.ops.{ops.MODULES[name]}"
    return Unit(module, name, variant)


def units() -> list[Unit]:
    """Every op in every variant, portable and tuned, and the walker; without the portable ops on
    formats that have no tuned kernel, which test_compiled_formats.py has."""
    portable = [
        unit_of(name, v, "cpu")
        for name in ops.MODULES
        for v in ops.find(name).variants
        if v in TUNED["matmul"][1] or v not in FORMATS
    ]
    tuned = [unit_of(name, v, "tuned") for name, (_, variants) in TUNED.items() for v in variants]
    return [WALKER, *portable, *tuned]


@cache
def machine(threads: int = 2) -> tuple[Library, Pool]:
    """All units, and a pool to run them on; built at the first call, all at once."""
    library = Library(units())
    return library, Pool(threads, library)


def run(name: str, variant: str, face: str, **operands: Any) -> None:
    """Run the op once over all its items; outputs are written in place."""
    op = ops.find(name)
    given = [p for p in op.signature.parameters if not p.is_function]
    assert [p.name for p in given] == list(operands)
    if face == "reference":
        assert op.numpy is not None
        takes_variant = "variant" in inspect.signature(op.numpy).parameters
        op.numpy(**operands, **({"variant": variant} if takes_variant else {}))
        return
    if face in ("cpu", "tuned"):
        run_compiled(*machine(), unit_of(name, variant, face), operands)
        return
    dims: dict[str, int] = {}
    for p in given:
        if p.is_array:
            dims.update(zip(p.dims, operands[p.name].shape, strict=True))
    values = {
        p.name: operands[p.name] if p.is_array else np.dtype(DTYPES[p.dtype]).type(operands[p.name])
        for p in given
    }
    count = op.signature.count(dims)
    if face == "njit":
        op.njit(variant)(*values.values(), count)
        return
    bindings = op.variants[variant]
    functions = {p.name: bindings[p.name] for p in op.signature.parameters if p.is_function}
    space = {**op.function.__globals__, **bindings}
    body = types.FunctionType(op.function.__code__, space)
    every = {**values, **functions}
    with np.errstate(all="ignore"):
        body(*(every[p.name] for p in op.signature.parameters), range(count))


def run_compiled(library: Library, pool: Pool, unit: Unit, operands: dict[str, Any]) -> None:
    """Run a unit of a library on arrays, as the CPU device runs it."""
    arrays = {key: value for key, value in operands.items() if isinstance(value, np.ndarray)}
    names = {key: key if key in arrays else value for key, value in operands.items()}
    shapes = {key: Operand("buffer", "", value.shape) for key, value in arrays.items()}
    dims = Dims(())  # the words point into it
    words = assemble([Row(unit.op, names)], [unit], [True], shapes, arrays, dims, library)
    pool.run(words, 1, np.zeros(1, np.int64))


def faces_of(name: str, variant: str = "", *, njit: bool = True) -> list[str]:
    """The faces that this op has in this variant."""
    faces = ["python", "reference", "cpu"]
    faces += ["njit"] if njit else []
    return faces + (["tuned"] if name in TUNED and variant in TUNED[name][1] else [])


def nans(*shape: int) -> np.ndarray:
    """An output that holds what no op may leave there."""
    return np.full(shape, np.nan, np.float32)


def packed(weight: np.ndarray, variant: str) -> np.ndarray:
    """A weight u8[N, row_bytes] as tuned kernels take it, by the reference of `pack`."""
    out = np.zeros((padded_rows(len(weight)), weight.shape[1]), np.uint8)
    ops.find("pack").numpy(out.reshape(-1), weight, variant)
    return out


def int8_activations(xq: np.ndarray, xs: np.ndarray) -> dict[str, np.ndarray]:
    """All that `quantize` gives beside xq i8[T, K] and xs f32[T, K / 32]."""
    sums = xq.reshape(len(xq), -1, 32).sum(axis=2, dtype=np.int32)
    return {
        "xq": xq,
        "xs": xs,
        "xsum": xq.reshape(len(xq), -1, 16).sum(axis=2, dtype=np.int32),
        "xtotal": xs * sums.astype(np.float32),
    }


def close(found: np.ndarray, expected: np.ndarray, bound: Any) -> None:
    """Everywhere finite and within `bound` of what is expected."""
    assert found.shape == expected.shape
    assert np.isfinite(found).all(), "not written, or not a number"
    excess = np.abs(found - expected) - bound
    worst = np.unravel_index(np.argmax(excess), excess.shape)
    assert excess[worst] <= 0, f"at {worst}: {found[worst]!r}, expected {expected[worst]!r}"
