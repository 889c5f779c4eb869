"""Which KV blocks hold which tokens, found by the hash of their tokens and of all before them."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = b""  # the digest of no tokens
DIGEST_BYTES = 16


class Found(NamedTuple):
    """What the cache holds of some tokens: full blocks and their digests; then `n_part` tokens
    more, if there are any, at the beginning of the block `part`."""

    blocks: list[int]
    digests: list[bytes]
    part: int
    n_part: int

    @property
    def held(self) -> list[int]:
        """All the blocks."""
        return [*self.blocks, self.part] if self.n_part else self.blocks


NOTHING = Found([], [], -1, 0)


@dataclass(frozen=True, slots=True)
class Entry:
    """What a block holds: `tokens` after those of the digest `before`."""

    before: bytes
    tokens: tuple[int, ...]
    digest: bytes | None  # of all of them, if the block is full


class PrefixIndex:
    """What is in blocks of `block_tokens` tokens; who holds them it does not know."""

    def __init__(self, block_tokens: int) -> None:
        self._size = block_tokens
        self._entries: dict[int, Entry] = {}
        self._full: dict[bytes, int] = {}
        self._after: dict[tuple[bytes, int], list[int]] = {}  # by what is before, and first token

    def find(self, tokens: Sequence[int], limit: int) -> Found:
        """The longest beginning of tokens[:limit] that is known."""
        size = self._size
        blocks: list[int] = []
        digests = [ROOT]
        for first in range(0, limit - size + 1, size):
            digest = digest_of(digests[-1], tokens[first : first + size])
            block = self._full.get(digest)
            if block is None:
                break
            blocks.append(block)
            digests.append(digest)
        first = len(blocks) * size
        part, n_part = self._longest(digests[-1], tokens[first : min(limit, first + size)])
        return Found(blocks, digests[1:], part, n_part)

    def _longest(self, before: bytes, tokens: Sequence[int]) -> tuple[int, int]:
        """The block that begins with most of these tokens, and with how many."""
        wanted = tuple(tokens)
        best, longest = -1, 0
        for block in self._known(before, wanted):
            held = self._entries[block].tokens
            # Most share less than the best so far, which one comparison shows.
            if held[: longest + 1] == wanted[: longest + 1]:
                best, longest = block, n_common(held, wanted)
        return best, longest

    def _known(self, before: bytes, tokens: Sequence[int]) -> Sequence[int]:
        """Blocks with at least the first of these tokens."""
        return self._after.get((before, tokens[0]), ()) if len(tokens) else ()

    def full(self, digest: bytes) -> int | None:
        """The block that is full and has this digest."""
        return self._full.get(digest)

    def covers(self, before: bytes, tokens: Sequence[int]) -> bool:
        """Whether a block is known that begins with all of these."""
        return self._longest(before, tokens)[1] == len(tokens)

    def beginnings(self, before: bytes, tokens: Sequence[int]) -> list[int]:
        """Blocks that hold some of these tokens and no others."""
        wanted = tuple(tokens)
        held = {block: self._entries[block].tokens for block in self._known(before, wanted)}
        return [
            block
            for block, some in held.items()
            if len(some) < len(wanted) and some == wanted[: len(some)]
        ]

    def add(self, block: int, before: bytes, tokens: Sequence[int], digest: bytes | None) -> None:
        """Say what a block holds, which nothing was said of; `digest` if it is full."""
        self._entries[block] = Entry(before, tuple(tokens), digest)
        self._after.setdefault((before, tokens[0]), []).append(block)
        if digest is not None:
            self._full[digest] = block

    def forget(self, block: int) -> None:
        """The block is about to hold something else."""
        entry = self._entries.pop(block)
        key = entry.before, entry.tokens[0]
        self._after[key].remove(block)
        if not self._after[key]:
            del self._after[key]
        if entry.digest is not None:
            del self._full[entry.digest]


def digest_of(before: bytes, tokens: Sequence[int]) -> bytes:
    """Of a full block of tokens and, by the digest of these, of all before."""
    return blake2b(before + array("i", tokens).tobytes(), digest_size=DIGEST_BYTES).digest()


def n_common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two sequences begin with in common."""
    n = min(len(a), len(b))
    return next((i for i in range(n) if a[i] != b[i]), n)
