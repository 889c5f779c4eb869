"""A device that keeps its memory in the host's and runs a kernel as the op's NumPy reference, so
that all but the kernels and the driver can be tested without a GPU."""

from __future__ import annotations

import ctypes
import inspect
from typing import Any

import numpy as np

from kernels_cuda import Launch
from llama3jit import ops
from llama3jit.compile.cuda.units import portable_units
from llama3jit.compile.entry import dtype_of

POISON = 0xC5  # what memory holds before it is written; as float32 it is -6321.6


class FakeGpu:
    """See llama3jit.devices.cuda.driver.Gpu. A kernel is its unit."""

    name = "a fake GPU"
    capability = (9, 0)

    def __init__(self, free: int = 2**31) -> None:
        self.free = free
        self.blocks: dict[int, np.ndarray] = {}
        self.host: dict[int, np.ndarray] = {}
        self.launches: list[Any] = []
        self.captures = 0
        self.broken = False
        self.closed = False

    def enter(self) -> None:
        pass

    def memory(self) -> tuple[int, int]:
        return self.free, self.free

    def allocate(self, size: int) -> int:
        block = np.zeros(max(size, 1), np.uint8)
        self.blocks[block.ctypes.data] = block
        return block.ctypes.data

    def pinned(self, size: int) -> np.ndarray:
        block = np.full(max(size, 1), POISON, np.uint8)
        self.host[block.ctypes.data] = block
        return block[:size]

    def unpin(self, host: np.ndarray) -> None:
        del self.host[host.ctypes.data]

    def _at(self, address: int, size: int) -> np.ndarray:
        """Bytes of the device's memory; an address outside of it is an error."""
        for base, block in self.blocks.items():
            if base <= address and address + size <= base + block.nbytes:
                return block[address - base : address - base + size]
        raise AssertionError(f"{size} bytes at {address:x} are not the device's")

    def upload(self, address: int, host: np.ndarray) -> None:
        self._at(address, host.nbytes)[:] = host

    def download(self, host: np.ndarray, address: int) -> None:
        host[:] = self._at(address, host.nbytes)

    def mark(self) -> Any:
        return object()

    def wait(self, mark: Any) -> None:
        pass

    def synchronize(self) -> None:
        if self.broken:
            raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS")

    def capture(self, work: Any) -> Any:
        """A graph is the list of calls; nothing runs while it is made."""
        self.captures += 1
        return work

    def run(self, graph: Any) -> None:
        graph()

    def forget(self, graph: Any) -> None:
        pass

    def release(self, address: int) -> None:
        del self.blocks[address]

    def launch(
        self, unit: Any, shape: Launch, arguments: list[Any], *, overlap: bool = False
    ) -> None:
        assert not overlap, "a portable kernel does not wait for the one in front"
        assert all(n >= 1 for n in (*shape.grid, *shape.block))
        self.launches.append(unit)
        op = ops.find(unit.op)
        given = [p for p in op.signature.parameters if not p.is_function]
        assert len(arguments) == len(given) + len(op.signature.dims)
        dims = dict(zip(op.signature.dims, arguments[len(given) :], strict=True))
        values = {}
        for parameter, argument in zip(given, arguments, strict=False):
            if not parameter.is_array:
                wanted = int if parameter.dtype == "i64" else np.float32
                assert type(argument) is wanted
                values[parameter.name] = argument
                continue
            shape_of = [int(dim) if dim.isdigit() else dims[dim] for dim in parameter.dims]
            dtype = np.dtype(dtype_of(op, unit.variant, parameter))
            size = int(np.prod(shape_of)) * dtype.itemsize
            values[parameter.name] = self._at(argument, size).view(dtype).reshape(shape_of)
        assert op.numpy is not None
        if "variant" in inspect.signature(op.numpy).parameters:
            values["variant"] = unit.variant
        op.numpy(**values)

    def close(self) -> None:
        self.closed = True
        self.blocks.clear()
        self.host.clear()


def kernels() -> dict[Any, Any]:
    """What a runner takes as its loaded kernels."""
    return {unit: unit for unit in portable_units()}


assert ctypes.sizeof(ctypes.c_void_p) == 8
