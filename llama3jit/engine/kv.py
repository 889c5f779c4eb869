"""The pool of KV blocks: which are free, which of these may be found again, and how many sequences
hold each of the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


class BlockPool:
    """`n_blocks` blocks with reference counts. A block that is marked stays as it is when nobody
    holds it, until it is needed for something else: then the one let go of longest ago is given
    away, after `forget` was called with it. Not for several threads at once."""

    def __init__(self, n_blocks: int, forget: Callable[[int], None] = lambda block: None) -> None:
        self.n_blocks = n_blocks
        self._forget = forget
        self._free = list(range(n_blocks - 1, -1, -1))
        self._references = [0] * n_blocks
        self._marked: set[int] = set()
        self._cached: dict[int, None] = {}  # marked and not held, the longest unused first

    @property
    def n_free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free) + len(self._cached)

    @property
    def n_cached(self) -> int:
        """Those of them that are marked."""
        return len(self._cached)

    def allocate(self, count: int) -> list[int]:
        """Take `count` free blocks, each held once; there must be that many (ValueError)."""
        if not 0 <= count <= self.n_free:
            raise ValueError(f"{count} KV blocks asked for, {self.n_free} are free")
        blocks = [self._free.pop() if self._free else self._evict() for _ in range(count)]
        for block in blocks:
            self._references[block] = 1
        return blocks

    def _evict(self) -> int:
        block = next(iter(self._cached))
        del self._cached[block]
        self._marked.remove(block)
        self._forget(block)
        return block

    def mark(self, block: int) -> None:
        """Let a block that somebody holds stay when it is let go of."""
        if self._references[block] == 0:
            raise ValueError(f"KV block {block} is free and cannot be marked")
        self._marked.add(block)

    def unmark(self, block: int) -> None:
        """Take the mark back."""
        self._marked.remove(block)
        if block in self._cached:
            del self._cached[block]
            self._free.append(block)

    def touch(self, block: int) -> None:
        """Count a marked block, if nobody holds it, as let go of now."""
        if block in self._cached:
            del self._cached[block]
            self._cached[block] = None

    def share(self, blocks: Iterable[int]) -> None:
        """Hold blocks, which somebody holds already or which are marked, once more."""
        for block in blocks:
            if self._references[block] == 0:
                if block not in self._cached:
                    raise ValueError(f"KV block {block} is free and cannot be shared")
                del self._cached[block]
            self._references[block] += 1

    def free(self, blocks: Sequence[int]) -> None:
        """Let go of each block once, the last one first, as it is of no use without those before
        it; the last to let go frees it."""
        for block in reversed(blocks):
            if self._references[block] == 0:
                raise ValueError(f"KV block {block} is freed twice")
            self._references[block] -= 1
            if self._references[block]:
                continue
            if block in self._marked:
                self._cached[block] = None
            else:
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
        if sorted([*self._free, *self._cached]) != [b for b, n in enumerate(held) if n == 0]:
            raise ValueError("the free KV blocks are not those that nobody holds")
        if set(self._cached) != {b for b in self._marked if held[b] == 0}:
            raise ValueError("the KV blocks that may be found again are not those that are marked")
