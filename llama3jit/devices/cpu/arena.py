"""Memory for weights: one mapping, of huge pages where there are some, cut into aligned pieces.

Weights are read front to back in every pass, so pieces lie in the order in which they are used.
"""

from __future__ import annotations

import mmap

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 64
HUGE_PAGE = 2 * 2**20
PRIVATE = hasattr(mmap, "MAP_PRIVATE") and hasattr(mmap, "MAP_ANONYMOUS")


class Arena:
    """Zeroed bytes for a known set of pieces."""

    def __init__(self, sizes: list[int]) -> None:
        total = sum(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)
        # Room to begin on a huge page; a page that is never touched takes no memory.
        # Private: what is shared, Python's default, gets no huge pages from Linux.
        private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if PRIVATE else {}
        self._map = mmap.mmap(-1, max(1, total) + HUGE_PAGE, **private)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._map.madvise(mmap.MADV_HUGEPAGE)
        self._bytes = np.frombuffer(self._map, np.uint8)
        self._next = -int(self._bytes.ctypes.data) % HUGE_PAGE

    def take(self, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """The next piece, uint8 of this shape."""
        size = int(np.prod(shape))
        piece = self._bytes[self._next : self._next + size].reshape(shape)
        self._next += -(-size // ALIGNMENT) * ALIGNMENT
        return piece
