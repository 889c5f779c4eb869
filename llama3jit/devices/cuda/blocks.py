"""Blocks of a KV cache in a GPU's memory: copied there, and read and written as bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llama3jit.devices.blocks import check_size


@dataclass(frozen=True, slots=True)
class Cache:
    """A layer's keys or values: where its first block lies, and the bytes of one."""

    address: int
    block_bytes: int


class Blocks:
    """The blocks of all layers. Copies are in order with the passes."""

    def __init__(self, gpu: Any, caches: Sequence[Cache]) -> None:
        self._gpu = gpu
        self._caches = caches
        self._nbytes = sum(cache.block_bytes for cache in caches)
        self._host: NDArray[np.uint8] | None = None

    def copy(self, source: int, target: int) -> None:
        """Make a block hold what another holds."""
        for cache in self._caches:
            addresses = (cache.address + block * cache.block_bytes for block in (target, source))
            self._gpu.copy(*addresses, cache.block_bytes)

    def read(self, block: int) -> NDArray[np.uint8]:
        """A copy of a block's bytes."""
        for address, part in self._parts(block):
            self._gpu.download(part, address)
        self._gpu.synchronize()
        return self._staging().copy()

    def write(self, block: int, data: NDArray[np.uint8]) -> None:
        """Make a block hold these bytes. Raises InvalidArgumentError for a wrong size."""
        check_size(data, self._nbytes)
        self._staging()[:] = data
        for address, part in self._parts(block):
            self._gpu.upload(address, part)
        self._gpu.synchronize()

    def _parts(self, block: int) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        """Where the parts of a block lie on the device, and in pinned memory."""
        host, at = self._staging(), 0
        for cache in self._caches:
            yield cache.address + block * cache.block_bytes, host[at : at + cache.block_bytes]
            at += cache.block_bytes

    def _staging(self) -> NDArray[np.uint8]:
        if self._host is None:
            self._host = self._gpu.pinned(self._nbytes)
        return self._host
