"""Tuned GPU kernels one by one, for tests and benchmarks: cubins, device memory, graphs."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import kernels_cuda
from llama3jit.compile.cuda.artifact import MANIFEST, read_images
from llama3jit.compile.cuda.targets import targets_for
from llama3jit.compile.cuda.units import signature_of
from llama3jit.compile.cuda.units import symbol as symbol_of
from llama3jit.compile.units import Unit

SHARED = 48 * 1024  # bytes of shared memory that a kernel may take without leave


def signature(op: str) -> list[tuple[str, str, tuple[str, ...]]]:
    """(name, dtype, dims) of each parameter of an op or of a fused kernel."""
    given = [p for p in signature_of(op).parameters if not p.is_function]
    return [(p.name, p.dtype, p.dims) for p in given]


def dims_of(op: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """The named dims of an op, in order of first use, from its operands' shapes."""
    dims: dict[str, int] = {}
    for name, _, symbols in signature(op):
        shape = shapes.get(name, ())
        if name == "k_cache" and symbols[-1] == "block_tokens":
            # An op's keys lie with the token last; on a GPU they lie like the values.
            shape = (*shape[:2], shape[3], shape[2])
        for symbol, extent in zip(symbols, shape, strict=False):
            if not symbol.isdigit():
                dims.setdefault(symbol, extent)
    return dims


def check(result: Any) -> Any:
    """What a driver call gives; raises RuntimeError for an error."""
    from cuda.bindings import driver

    code, *values = result
    if code != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"the CUDA driver says {code.name}")
    return values[0] if len(values) == 1 else values


class Gpu:
    """The first GPU, its kernels by (op, variant), and memory that is freed at the end."""

    def __init__(self, cubins: Path) -> None:
        """`cubins` has a file for each kernel, or is a folder of shipped code."""
        from cuda.bindings import driver

        self.cuda = driver
        check(driver.cuInit(0))
        self.device = check(driver.cuDeviceGet(0))
        check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(self.device))))
        self.stream = check(driver.cuStreamCreate(1))
        self.cubins = cubins
        self._kernels: dict[tuple[str, str], Any] = {}
        self._shared: dict[tuple[str, str], int] = {}
        self._taken: list[int] = []

    def kernel(self, op: str, variant: str, shared: int = 0) -> Any:
        if (op, variant) not in self._kernels:
            code, symbol = self.cubin(op, variant)
            library = check(self.cuda.cuLibraryLoadData(code, [], [], 0, [], [], 0))
            found = check(self.cuda.cuLibraryGetKernel(library, symbol.encode()))
            self._kernels[op, variant] = found
        found = self._kernels[op, variant]
        if shared > self._shared.get((op, variant), SHARED):
            self._shared[op, variant] = shared
            most = self.cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            check(self.cuda.cuKernelSetAttribute(most, shared, found, self.device))
        return found

    def cubin(self, op: str, variant: str) -> tuple[bytes, str]:
        """A kernel's cubin and its symbol there."""
        if not (self.cubins / MANIFEST).exists():
            return (self.cubins / f"{stem(op, variant)}.cubin").read_bytes(), op
        unit = Unit(kernels_cuda.TUNED[op][0], op, variant)
        target = next(targets_for(kernels_cuda.CAPABILITY[0]))
        return read_images(self.cubins, target, [unit])[unit], symbol_of(unit)

    def alloc(self, size: int) -> int:
        address = int(check(self.cuda.cuMemAlloc(max(size, 16))))
        self._taken.append(address)
        return address

    def free(self) -> None:
        for address in self._taken:
            check(self.cuda.cuMemFree(address))
        self._taken.clear()

    def put(self, array: np.ndarray) -> int:
        array = np.ascontiguousarray(array)
        address = self.alloc(array.nbytes)
        if array.nbytes:
            check(self.cuda.cuMemcpyHtoD(address, array.ctypes.data, array.nbytes))
            # Small copies may return before they are done, and the stream does not wait for them.
            check(self.cuda.cuCtxSynchronize())
        return address

    def get(self, address: int, like: np.ndarray) -> np.ndarray:
        out = np.empty_like(like)
        check(self.cuda.cuMemcpyDtoH(out.ctypes.data, address, out.nbytes))
        return out

    def launch(
        self,
        op: str,
        variant: str,
        values: list[int | float],
        dims: Mapping[str, int],
        *,
        overlap: bool = False,
    ) -> None:
        """Launch on the stream; `values` are addresses and scalars. `overlap` allows the kernel to
        start before the one ahead of it is done (programmatic dependent launch)."""
        given = [*values, *dims.values()]
        how = kernels_cuda.launch(op, variant, dims)
        kernel = self.kernel(op, variant, how.shared)
        kinds = tuple(ctypes.c_float if isinstance(v, float) else ctypes.c_int64 for v in given)
        config = self.cuda.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = how.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = how.block
        config.sharedMemBytes, config.hStream = how.shared, self.stream
        if overlap:
            attribute = self.cuda.CUlaunchAttribute()
            names = self.cuda.CUlaunchAttributeID
            attribute.id = names.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            config.attrs, config.numAttrs = [attribute], 1
        function = self.cuda.CUfunction(int(kernel))
        check(self.cuda.cuLaunchKernelEx(config, function, (tuple(given), kinds), 0))

    def wait(self) -> None:
        check(self.cuda.cuStreamSynchronize(self.stream))

    @contextmanager
    def captured(self) -> Iterator[list[Any]]:
        """What is launched inside becomes a graph, put into the list that this yields."""
        mode = self.cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        check(self.cuda.cuStreamBeginCapture(self.stream, mode))
        graphs: list[Any] = []
        yield graphs
        graph = check(self.cuda.cuStreamEndCapture(self.stream))
        graphs.append(check(self.cuda.cuGraphInstantiate(graph, 0)))

    def seconds(self, fill: Callable[[], None], repeats: int = 7) -> float:
        """The median time of a graph of all that `fill` launches."""
        fill()  # what it allocates cannot be while launches are captured
        self.wait()
        with self.captured() as graphs:
            fill()
        start, end = (check(self.cuda.cuEventCreate(0)) for _ in range(2))
        times = []
        for i in range(repeats + 2):
            check(self.cuda.cuEventRecord(start, self.stream))
            check(self.cuda.cuGraphLaunch(graphs[0], self.stream))
            check(self.cuda.cuEventRecord(end, self.stream))
            self.wait()
            if i >= 2:
                times.append(check(self.cuda.cuEventElapsedTime(start, end)) / 1e3)
        check(self.cuda.cuGraphExecDestroy(graphs[0]))
        return float(np.median(times))


def stem(op: str, variant: str) -> str:
    """The name of a kernel's file."""
    return f"{op}.{variant.replace(':', '.t')}".strip(".")
