"""Bytes of the file to the GPU, through two pinned buffers in turn: while one is copied by the
device, the other is filled."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

CHUNK_BYTES = 32 * 2**20
N_BUFFERS = 2
# One thread copies at a quarter of what the memory and the bus can do.
N_THREADS = 4
SLICE_BYTES = CHUNK_BYTES // N_THREADS


class Uploader:
    """Copies host arrays to device memory, in the order of the calls."""

    def __init__(self, gpu: Any) -> None:
        self._gpu = gpu
        self._buffers = [gpu.pinned(CHUNK_BYTES) for _ in range(N_BUFFERS)]
        self._marks: list[Any] = [None] * N_BUFFERS
        self._next = 0
        self._pool = ThreadPoolExecutor(N_THREADS, "llama3jit-upload")

    def upload(self, address: int, array: NDArray[Any]) -> None:
        """Copy an array, as its bytes; the array may change after the call."""
        source = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        for begin in range(0, source.nbytes, CHUNK_BYTES):
            part = source[begin : begin + CHUNK_BYTES]
            buffer = self._take()[: part.nbytes]
            self._fill(buffer, part)
            self._gpu.upload(address + begin, buffer)
            self._marks[self._next - 1] = self._gpu.mark()

    def _take(self) -> NDArray[np.uint8]:
        """The next buffer, once the device has read what was in it."""
        self._next = self._next % N_BUFFERS + 1
        mark, self._marks[self._next - 1] = self._marks[self._next - 1], None
        if mark is not None:
            self._gpu.wait(mark)
        buffer: NDArray[np.uint8] = self._buffers[self._next - 1]
        return buffer

    def _fill(self, buffer: NDArray[np.uint8], part: NDArray[np.uint8]) -> None:
        if part.nbytes <= SLICE_BYTES:
            buffer[:] = part
            return
        slices = [slice(at, at + SLICE_BYTES) for at in range(0, part.nbytes, SLICE_BYTES)]
        for _ in self._pool.map(lambda s: np.copyto(buffer[s], part[s]), slices):
            pass

    def close(self) -> None:
        """Wait for the copies, and give the buffers back."""
        self._pool.shutdown()
        for mark in self._marks:
            if mark is not None:
                self._gpu.wait(mark)
        for buffer in self._buffers:
            self._gpu.unpin(buffer)
