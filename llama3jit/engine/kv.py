"""The pool of KV blocks: which are free, and how many sequences hold each of the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class BlockPool:
    """`n_blocks` blocks with reference counts. Not for several threads at once."""

    def __init__(self, n_blocks: int) -> None:
        self.n_blocks = n_blocks
        self._free = list(range(n_blocks - 1, -1, -1))
        self._references = [0] * n_blocks

    @property
    def n_free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Take `count` free blocks, each held once; there must be that many (ValueError)."""
        if not 0 <= count <= len(self._free):
            raise ValueError(f"{count} KV blocks asked for, {len(self._free)} are free")
        blocks = [self._free.pop() for _ in range(count)]
        for block in blocks:
            self._references[block] = 1
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """Hold blocks, which somebody holds already, once more."""
        for block in blocks:
            if self._references[block] == 0:
                raise ValueError(f"KV block {block} is free and cannot be shared")
            self._references[block] += 1

    def free(self, blocks: Iterable[int]) -> None:
        """Let go of each block once; the last to let go frees it."""
        for block in blocks:
            if self._references[block] == 0:
                raise ValueError(f"KV block {block} is freed twice")
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free.append(block)

    def check(self, tables: Iterable[Iterable[int]]) -> None:
        """Raise ValueError unless the counts are exactly those of these block tables."""
        held = [0] * self.n_blocks
        for table in tables:
            for block in table:
                held[block] += 1
        if held != self._references:
            wrong = [b for b in range(self.n_blocks) if held[b] != self._references[b]]
            raise ValueError(f"KV blocks {wrong[:8]} have wrong reference counts")
        if sorted(self._free) != [b for b in range(self.n_blocks) if held[b] == 0]:
            raise ValueError("the free KV blocks are not those that nobody holds")
