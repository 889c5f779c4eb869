"""One GPU through cuda.core and the driver's bindings: memory, copies, kernels, graphs. The only
module that imports them; no toolkit is needed."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_cuda import Launch
from llama3jit.errors import DeviceError

Bytes = NDArray[np.uint8]

OVERLAPPING = (9, 0)  # the first devices on which a kernel may start while another ends
DEFAULT_SHARED = 48 * 1024  # bytes of shared memory that a block may have without being asked for


def called(result: tuple[Any, ...]) -> Any:
    """The value of a call of the driver's bindings. Raises DeviceError with the driver's name of
    the error, and its meaning."""
    from cuda.bindings import driver

    error, *values = result
    if error != driver.CUresult.CUDA_SUCCESS:
        _, name = driver.cuGetErrorName(error)
        _, meaning = driver.cuGetErrorString(error)
        words = [text.decode() for text in (name, meaning) if text]
        raise DeviceError(f"the GPU failed: {': '.join(words) or error}")
    return values[0] if len(values) == 1 else values


class Gpu:
    """A device, its primary context, and one stream on which everything happens in order.

    Addresses are ints in the device's memory. Every method but `close` raises DeviceError when the
    driver reports an error, which may be one of earlier work.
    """

    def __init__(self, ordinal: int) -> None:
        """Open the device; takes a few hundred MiB of its memory for the context."""
        from cuda.bindings import driver
        from cuda.core import Device

        self._cu = driver
        self._device = Device(ordinal)
        self._device.set_current()
        self._entered = threading.local()  # not by the threads' numbers, which are used again
        self._stream = self._device.create_stream()
        self._handle = driver.CUstream(int(self._stream.handle))
        self._memory: list[int] = []
        self._pinned: list[int] = []
        self._images: list[Any] = []
        self._shared: dict[int, int] = {}  # bytes that a kernel may have, where it asked
        self.ordinal = ordinal
        self.name = str(self._device.name)
        major, minor = self._device.compute_capability
        self.capability = (int(major), int(minor))
        self.processors = int(self._device.properties.multiprocessor_count)

    def enter(self) -> None:
        """Make the device current in this thread."""
        if not hasattr(self._entered, "yes"):
            self._device.set_current()
            self._entered.yes = True

    def memory(self) -> tuple[int, int]:
        """Bytes that are free, and all bytes, of the device."""
        free, total = called(self._cu.cuMemGetInfo())
        return int(free), int(total)

    def allocate(self, size: int) -> int:
        """The address of new zeroed device memory."""
        address = int(called(self._cu.cuMemAlloc(max(size, 1))))
        self._memory.append(address)
        self.zero(address, size)
        return address

    def zero(self, address: int, size: int) -> None:
        """Zero bytes, in order."""
        if size:
            called(self._cu.cuMemsetD8Async(address, 0, size, self._handle))

    def release(self, address: int) -> None:
        """Give device memory back."""
        self._memory.remove(address)
        called(self._cu.cuMemFree(address))

    def pinned(self, size: int) -> Bytes:
        """Host memory that copies read and write directly."""
        address = int(called(self._cu.cuMemHostAlloc(max(size, 1), 0)))
        self._pinned.append(address)
        return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))

    def unpin(self, host: Bytes) -> None:
        """Give pinned memory back."""
        address = int(host.ctypes.data)
        self._pinned.remove(address)
        called(self._cu.cuMemFreeHost(address))

    def upload(self, address: int, host: Bytes) -> None:
        """Copy pinned host bytes to the device, in order; they must stay until then."""
        source = int(host.ctypes.data)
        called(self._cu.cuMemcpyHtoDAsync(address, source, host.nbytes, self._handle))

    def download(self, host: Bytes, address: int) -> None:
        """Copy device bytes to pinned host memory, in order."""
        target = int(host.ctypes.data)
        called(self._cu.cuMemcpyDtoHAsync(target, address, host.nbytes, self._handle))

    def copy(self, target: int, source: int, size: int) -> None:
        """Copy device bytes to where they do not overlap, in order."""
        called(self._cu.cuMemcpyDtoDAsync(target, source, size, self._handle))

    def mark(self) -> Any:
        """A mark behind all work so far, for `wait`."""
        event = called(self._cu.cuEventCreate(self._cu.CUevent_flags.CU_EVENT_DISABLE_TIMING))
        called(self._cu.cuEventRecord(event, self._handle))
        return event

    def wait(self, mark: Any) -> None:
        """Wait until the device has passed a mark, and forget it."""
        called(self._cu.cuEventSynchronize(mark))
        called(self._cu.cuEventDestroy(mark))

    def synchronize(self) -> None:
        """Wait for all work."""
        called(self._cu.cuStreamSynchronize(self._handle))

    def load(self, image: bytes, is_ptx: bool, symbol: str) -> Any:
        """The kernel of that name in a cubin, or in PTX that the driver compiles."""
        from cuda.core import ObjectCode

        code = ObjectCode.from_ptx(image) if is_ptx else ObjectCode.from_cubin(image)
        try:
            kernel = code.get_kernel(symbol)
        except Exception as error:
            raise DeviceError(f"the driver does not load the kernel {symbol}: {error}") from error
        self._images.append(code)
        return kernel

    def _allow_shared(self, kernel: Any, size: int) -> None:
        """Let the kernel's blocks have that much dynamic shared memory."""
        handle = int(kernel.handle)
        if self._shared.get(handle, DEFAULT_SHARED) < size:
            kinds = self._cu.CUfunction_attribute
            attribute = kinds.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            device = called(self._cu.cuCtxGetDevice())
            kernel_handle = self._cu.CUkernel(handle)
            called(self._cu.cuKernelSetAttribute(attribute, size, kernel_handle, device))
            self._shared[handle] = size

    def launch(
        self,
        kernel: Any,
        shape: Launch,
        arguments: Sequence[int | np.float32],
        *,
        overlap: bool = False,
    ) -> None:
        """Run a kernel, in order; ints are int64. With `overlap` it may start before the one in
        front has ended, and waits for it itself, where the device has that."""
        from cuda.core import LaunchConfig, launch

        if shape.shared > DEFAULT_SHARED:
            self._allow_shared(kernel, shape.shared)
        config = LaunchConfig(
            grid=shape.grid,
            block=shape.block,
            shmem_size=shape.shared,
            programmatic_stream_serialization=overlap and self.capability >= OVERLAPPING,
        )
        try:
            launch(self._stream, config, kernel, *arguments)
        except Exception as error:
            raise DeviceError(f"a kernel does not launch: {error}") from error

    def capture(self, work: Callable[[], None]) -> Any:
        """A graph of all that `work` asks of the device, which does none of it now."""
        mode = self._cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        called(self._cu.cuStreamBeginCapture(self._handle, mode))
        try:
            work()
        except BaseException:
            self._cu.cuStreamEndCapture(self._handle)
            raise
        graph = called(self._cu.cuStreamEndCapture(self._handle))
        try:
            return called(self._cu.cuGraphInstantiate(graph, 0))
        finally:
            self._cu.cuGraphDestroy(graph)

    def run(self, graph: Any) -> None:
        """Launch a graph, in order."""
        called(self._cu.cuGraphLaunch(graph, self._handle))

    def seconds(self, graph: Any) -> float:
        """How long a graph takes, by the device's clock."""
        begin, end = (called(self._cu.cuEventCreate(0)) for _ in range(2))
        called(self._cu.cuEventRecord(begin, self._handle))
        self.run(graph)
        called(self._cu.cuEventRecord(end, self._handle))
        self.synchronize()
        milliseconds = float(called(self._cu.cuEventElapsedTime(begin, end)))
        for event in (begin, end):
            called(self._cu.cuEventDestroy(event))
        return milliseconds / 1000

    def forget(self, graph: Any) -> None:
        """Let go of a graph."""
        self._cu.cuGraphExecDestroy(graph)

    def close(self) -> None:
        """Give all memory back, whatever state the device is in; may be called twice."""
        if self._memory or self._pinned:
            self._device.set_current()
            self._cu.cuStreamSynchronize(self._handle)
        for address in self._memory:
            self._cu.cuMemFree(address)
        for address in self._pinned:
            self._cu.cuMemFreeHost(address)
        self._memory, self._pinned, self._images = [], [], []
