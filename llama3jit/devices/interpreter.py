"""Runs a plan row by row from Python: on the ops' NumPy references in float64, which is the
device "reference", or on their `njit(parallel=True)` or `cuda.jit` faces. Slow and plain; what
other devices are measured against."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llama3jit import ops
from llama3jit.devices import Leading, Limits
from llama3jit.devices.blocks import copy_block, read_block, write_block
from llama3jit.devices.capture import Arrays
from llama3jit.devices.check import check_batch
from llama3jit.errors import CancelledError, DeviceError
from llama3jit.model import weights
from llama3jit.model.batch import Batch
from llama3jit.model.config import ModelConfig
from llama3jit.model.plan import Operand, Plan, Row
from llama3jit.ops.faces import run_cuda
from llama3jit.ops.op import Op
from llama3jit.ops.signature import DTYPES

Call = Callable[..., None]


class Interpreter:
    """A plan on the faces of one kind: `face` is "reference", "njit" or "cuda"."""

    n_leading = 0

    def __init__(
        self, gguf: Any, config: ModelConfig, plan: Plan, limits: Limits, face: str
    ) -> None:
        self.limits = limits
        self.device = "reference" if face == "reference" else f"{face} faces"
        self.memory = memory_of(plan, limits)
        self.plan = plan
        self._face = face
        self._wide = face == "reference"
        self._cancelled = threading.Event()
        self._fixed: dict[str, NDArray[Any]] = {}
        for name, operand in plan.operands.items():
            if operand.kind == "weight":
                self._fixed[name] = weights.matrix(gguf, name, operand)
            elif operand.kind == "vector":
                self._fixed[name] = weights.vector(gguf, name)
            elif operand.kind == "table":
                self._fixed[name] = weights.frequencies(gguf, config)
            elif operand.kind == "cache":
                shape = [limits.n_blocks, *(int(dim) for dim in operand.shape[1:])]
                self._fixed[name] = np.zeros(shape, self._dtype(operand.dtype))

    def forward(self, batch: Batch) -> NDArray[np.float32]:
        """See Runner."""
        if not self._fixed:
            raise DeviceError("the model is closed")
        check_batch(batch, self.limits)
        try:
            arrays = self._arrays_for(batch)
            self._run(self.plan.rows, arrays)
            return arrays["logits"].astype(np.float32)
        finally:
            self.begin()

    def rows_for(self, batch: Batch | None) -> tuple[Sequence[Row], Mapping[str, Operand]]:
        """See Pausing."""
        return self.plan.rows, self.plan.operands

    def pausing(self, batch: Batch, stops: Sequence[int]) -> Iterator[tuple[int, Arrays]]:
        """See Pausing."""
        if not self._fixed:
            raise DeviceError("the model is closed")
        check_batch(batch, self.limits)
        arrays = self._arrays_for(batch)
        begin = 0
        try:
            for stop in stops:
                self._run(self.plan.rows[begin : stop + 1], arrays)
                yield stop, arrays
                begin = stop + 1
        finally:
            self.begin()

    def _arrays_for(self, batch: Batch) -> dict[str, NDArray[Any]]:
        arrays = dict(self._fixed)
        for name, operand in self.plan.operands.items():
            if operand.kind == "batch":
                arrays[name] = getattr(batch, name)
            elif operand.kind == "buffer":
                sizes = {"T": len(batch.tokens), "R": len(batch.logits_rows)}
                shape = [int(sizes.get(str(dim), dim)) for dim in operand.shape]
                arrays[name] = np.full(shape, np.nan, self._dtype(operand.dtype))
        return arrays

    def _run(self, rows: Sequence[Row], arrays: dict[str, NDArray[Any]]) -> None:
        for row in rows:
            if self._cancelled.is_set():
                raise CancelledError("the forward pass was cancelled")
            self._call(row, arrays)

    def _dtype(self, name: str) -> str:
        # The reference carries everything but a half-precision cache in float64.
        return "float64" if self._wide and name == "f32" else DTYPES[name]

    def _call(self, row: Row, arrays: dict[str, NDArray[Any]]) -> None:
        op = ops.find(row.op)
        values: list[Any] = []
        dims: dict[str, int] = {}
        given = [p for p in op.signature.parameters if not p.is_function]
        for parameter in given:
            value = row.operands[parameter.name]
            if isinstance(value, str):
                array = arrays[value]
                leading = array.shape[: len(parameter.dims) - 1]  # -1 for the rest refuses 0 rows
                array = array.reshape(*leading, prod(array.shape[len(leading) :]))
                dims.update(zip(parameter.dims, array.shape, strict=True))
                values.append(array)
            else:
                values.append(np.dtype(DTYPES[parameter.dtype]).type(value))
        if self._face == "reference":
            _numpy(op, row.variant)(**{p.name: v for p, v in zip(given, values, strict=True)})
        elif self._face == "njit":
            op.njit(row.variant)(*values, op.signature.count(dims))
        else:
            run_cuda(op, row.variant, values, op.signature.count(dims))

    def leading(self, batch: Batch) -> Leading | None:
        """See Runner."""
        return None

    def copy_block(self, source: int, target: int) -> None:
        """See Runner."""
        copy_block(self._caches(), source, target)

    def read_block(self, block: int) -> NDArray[np.uint8]:
        """See Runner."""
        return read_block(self._caches(), block)

    def write_block(self, block: int, data: NDArray[np.uint8]) -> None:
        """See Runner."""
        write_block(self._caches(), block, data)

    def _caches(self) -> list[NDArray[Any]]:
        if not self._fixed:
            raise DeviceError("the model is closed")
        operands = self.plan.operands
        return [self._fixed[name] for name, op in operands.items() if op.kind == "cache"]

    def begin(self) -> None:
        """See Runner."""
        self._cancelled.clear()

    def cancel(self) -> None:
        """See Runner."""
        self._cancelled.set()

    def close(self) -> None:
        """See Runner."""
        self._fixed.clear()


def memory_of(plan: Plan, limits: Limits) -> dict[str, int]:
    """Bytes by use, for the reference: caches, buffers, and the largest weight as float64."""
    sizes = {"T": limits.max_tokens, "R": limits.max_logits_rows, "n_blocks": limits.n_blocks}
    uses = {"cache": "kv", "buffer": "buffers"}
    needed = {"weights": 0, "kv": 0, "buffers": 0}
    for operand in plan.operands.values():
        size = 8
        for dim in operand.shape:
            size *= sizes.get(dim, limits.max_sequences) if isinstance(dim, str) else dim
        if operand.kind in uses:
            needed[uses[operand.kind]] += size
        elif operand.kind == "weight":
            # At most two values a byte, as 8 bytes each, and the float32 that they are made of.
            needed["weights"] = max(needed["weights"], 3 * size)
    return needed


def _numpy(op: Op, variant: str) -> Call:
    assert op.numpy is not None
    if "variant" in inspect.signature(op.numpy).parameters:
        return partial(op.numpy, variant=variant)
    return op.numpy
