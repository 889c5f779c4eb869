"""The KV cache as sequences see it: blocks that are held, shared, found again, copied and saved.

A block is written by one sequence alone, and only while nobody else holds it and it cannot be
found. When it is full it no longer changes, and is shared; of one that is not full, others get a
copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from llama3jit.engine.kv import BlockPool
from llama3jit.engine.prefix import NOTHING, ROOT, Found, PrefixIndex, digest_of
from llama3jit.engine.snapshot import CacheSnapshot
from llama3jit.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama3jit.devices import Runner
    from llama3jit.engine.sequence import SequenceState


class KvCache:
    """The blocks of a runner. `reuse`: what sequences leave in them is found again. What raises
    is the runner's; then nothing is held that was not before."""

    def __init__(self, runner: Runner, reuse: bool) -> None:
        self.reuse = reuse
        self.block_tokens = runner.limits.block_tokens
        self._runner = runner
        self._index = PrefixIndex(self.block_tokens)
        self.pool = BlockPool(runner.limits.n_blocks, self._index.forget)

    def blocks_for(self, n_tokens: int) -> int:
        """How many blocks hold so many tokens."""
        return -(-n_tokens // self.block_tokens)

    def take(self, sequence: SequenceState, limit: int, spare: int) -> bool:
        """Give a sequence that has none the blocks for its tokens, of which up to `limit` may be
        in the cache; False, and no blocks, if fewer than `spare` would be left."""
        found = self._index.find(sequence.tokens, limit) if self.reuse else NOTHING
        n_fresh = self.blocks_for(len(sequence.tokens)) - len(found.blocks)
        self.pool.share(found.held)
        if found.n_part and self.pool.n_free < n_fresh:
            self.pool.free([found.part])
            found = found._replace(n_part=0)
        if self.pool.n_free - n_fresh < spare:
            self.pool.free(found.held)
            return False
        self._fill(sequence, found, n_fresh)
        return True

    def fork(self, parent: SequenceState, child: SequenceState, spare: int) -> bool:
        """As `take`, for a child that has the tokens of a parent that has blocks."""
        self.note(parent)
        n_full, n_part = divmod(parent.computed, self.block_tokens)
        n_fresh = self.blocks_for(len(child.tokens)) - n_full
        if self.pool.n_free - n_fresh < spare:
            return False
        part = parent.block_table[n_full] if n_part else -1
        found = Found(parent.block_table[:n_full], parent.digests[:n_full], part, n_part)
        self.pool.share(found.held)
        self._fill(child, found, n_fresh)
        return True

    def _fill(self, sequence: SequenceState, found: Found, n_fresh: int) -> None:
        """Make a block table of the full blocks, a copy and fresh ones; what was found is held."""
        fresh = self.pool.allocate(n_fresh)
        try:
            if found.n_part:
                self._runner.copy_block(found.part, fresh[0])
        except BaseException:
            self.pool.free([*found.held, *fresh])
            raise
        self.pool.free(found.held[len(found.blocks) :])
        sequence.block_table = [*found.blocks, *fresh]
        sequence.digests = list(found.digests)
        sequence.computed = len(found.blocks) * self.block_tokens + found.n_part
        sequence.block_row = np.zeros((1, self.blocks_for(sequence.capacity)), np.int32)
        sequence.block_row[0, : len(sequence.block_table)] = sequence.block_table

    def extend(self, sequence: SequenceState) -> None:
        """Give a sequence one block more; one must be free."""
        held = len(sequence.block_table)
        sequence.block_table += self.pool.allocate(1)
        sequence.block_row[0, held] = sequence.block_table[held]

    def note(self, sequence: SequenceState) -> None:
        """Let the blocks that a running sequence has filled be found."""
        if self.reuse:
            for i in range(len(sequence.digests), sequence.computed // self.block_tokens):
                before = sequence.digests[-1] if i else ROOT
                sequence.digests.append(digest_of(before, self._tokens_of(sequence, i)))
                self._offer(sequence, i)

    def _tokens_of(self, sequence: SequenceState, i: int) -> Sequence[int]:
        first = i * self.block_tokens
        return sequence.tokens[first : min(first + self.block_tokens, sequence.computed)]

    def _offer(self, sequence: SequenceState, i: int) -> None:
        """Let the i-th block of a sequence be found, unless another holds what it holds."""
        before = sequence.digests[i - 1] if i else ROOT
        tokens = self._tokens_of(sequence, i)
        digest = sequence.digests[i] if i < len(sequence.digests) else None
        if self._index.full(digest) is None if digest else not self._index.covers(before, tokens):
            self._add(sequence.block_table[i], before, tokens, digest)

    def _add(self, block: int, before: bytes, tokens: Sequence[int], digest: bytes | None) -> None:
        for shorter in self._index.beginnings(before, tokens):
            self._index.forget(shorter)
            self.pool.unmark(shorter)
        self._index.add(block, before, tokens, digest)
        self.pool.mark(block)

    def release(self, sequence: SequenceState, keep: bool) -> None:
        """Take its blocks from a sequence; with `keep`, all that it computed can be found."""
        if keep and self.reuse:
            self.note(sequence)
            for i in range(self.blocks_for(sequence.computed)):
                self._offer(sequence, i)
        self._let_go(sequence.block_table, sequence.digests)
        sequence.block_table, sequence.digests, sequence.computed = [], [], 0

    def _let_go(self, blocks: Sequence[int], digests: Sequence[bytes]) -> None:
        """Free blocks, and count those that hold the same as used now, the last one first: a block
        is of no use without those before it."""
        for i in reversed(range(len(blocks))):
            same = self._index.full(digests[i]) if i < len(digests) else None
            if same is not None:
                self.pool.touch(same)
            self.pool.free([blocks[i]])

    def save(self, tokens: Sequence[int]) -> CacheSnapshot:
        """What the cache holds of these tokens, from position 0 on."""
        found = self._index.find(tokens, len(tokens))
        n = len(found.blocks) * self.block_tokens + found.n_part
        return CacheSnapshot(tokens[:n], [self._runner.read_block(block) for block in found.held])

    def load(self, snapshot: CacheSnapshot) -> None:
        """Put blocks back, as many as are free, for sequences that begin with these tokens. Raises
        InvalidArgumentError unless the tokens fill the blocks."""
        if self.blocks_for(len(snapshot.tokens)) != len(snapshot.blocks):
            raise InvalidArgumentError(
                f"{len(snapshot.blocks)} KV blocks were given for {len(snapshot.tokens)} tokens: "
                f"expected {self.blocks_for(len(snapshot.tokens))}"
            )
        held: list[int] = []
        digests: list[bytes] = []
        if not self.reuse:
            return
        try:
            for i, data in enumerate(snapshot.blocks):
                if self.pool.n_free == 0:
                    break
                first = i * self.block_tokens
                tokens = snapshot.tokens[first : first + self.block_tokens]
                before = digests[-1] if digests else ROOT
                full = len(tokens) == self.block_tokens
                digest = digest_of(before, tokens) if full else None
                known = self._index.full(digest) if digest else None
                if digest:
                    digests.append(digest)
                if known is not None:
                    self.pool.share([known])
                    held.append(known)
                elif full or not self._index.covers(before, tokens):
                    held += self.pool.allocate(1)
                    self._runner.write_block(held[-1], data)
                    self._add(held[-1], before, tokens, digest)
        finally:
            self._let_go(held, digests)
