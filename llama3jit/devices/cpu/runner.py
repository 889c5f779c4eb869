"""A model on the CPU: weights packed, rows assembled, passes run by the pool."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from llama3jit.compile.library import Library
from llama3jit.compile.units import WALKER
from llama3jit.devices import Leading, Limits
from llama3jit.devices.blocks import copy_block, read_block, write_block
from llama3jit.devices.check import check_batch
from llama3jit.devices.cpu.arena import Arena
from llama3jit.devices.cpu.assemble import BARRIER, Dims, assemble, split_words
from llama3jit.devices.cpu.lower import Lowered, chunk_operands, split_attention, split_units
from llama3jit.devices.cpu.packing import pack_units, passes
from llama3jit.devices.cpu.pool import Pool, get_pool
from llama3jit.errors import DeviceError
from llama3jit.model import weights
from llama3jit.model.batch import Batch
from llama3jit.model.config import ModelConfig
from llama3jit.model.plan import Operand, Row
from llama3jit.ops.signature import DTYPES
from llama3jit.ops.split_attention import CHUNK, FEW

if TYPE_CHECKING:
    from llama3jit.compile.build import Progress
    from llama3jit.devices.capture import Arrays

BATCH_NAMES = ("tokens", "positions", "seq_of", "block_tables", "logits_rows")


class CpuRunner:
    """See Runner in llama3jit.devices."""

    n_leading = 0  # whole rows cost nothing here

    def __init__(
        self,
        gguf: Any,
        config: ModelConfig,
        lowered: Lowered,
        limits: Limits,
        *,
        threads: int,
        progress: Progress | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        """`meanwhile` is called once, before the first pass that packs weights: from there on
        compiled code does most of the work, and the interpreter is free."""
        self.limits = limits
        self.device = "cpu"
        self.memory = memory_needed(lowered, limits)
        self.lowered = lowered
        units = [WALKER, *lowered.units, *split_units(lowered), *pack_units(lowered)]
        self._library = Library(units, progress)
        self.pool: Pool | None = get_pool(threads, self._library)
        self._sizes = largest_sizes(limits)
        self._dims = Dims(tuple(self._sizes))
        for symbol, size in self._sizes.items():
            self._dims.set(symbol, size)
        self._cancel = np.zeros(1, np.int64)
        self._arrays: dict[str, NDArray[Any]] = {}
        self._gguf = gguf  # embeddings, and weights without a tuned kernel, are read from the map
        self._allocate(gguf, config)
        if meanwhile is not None:
            meanwhile()
        for part in passes(lowered, self._arrays, gguf):
            n = len(part.rows)
            last = [i + 1 == n for i in range(n)]
            words = assemble(
                part.rows, part.units, last, part.operands, part.arrays, self._dims, self._library
            )
            self.pool.run(words, n, self._cancel)
            for name in part.read:
                gguf.release(name)
        self._whole = self._assemble(lowered)
        # For a few tokens over a long context: words and rows, made when they are first needed.
        self._split: tuple[NDArray[np.int64], Lowered] | None = None

    def _assemble(self, lowered: Lowered) -> NDArray[np.int64]:
        return assemble(
            lowered.rows,
            lowered.units,
            lowered.barriers,
            lowered.operands,
            self._arrays,
            self._dims,
            self._library,
        )

    def _zeros(self, operand: Operand) -> NDArray[Any]:
        """An array as large as the operand can get."""
        shape = [int(self._sizes.get(str(dim), dim)) for dim in operand.shape]
        return np.zeros(shape, DTYPES[operand.dtype])

    def _allocate(self, gguf: Any, config: ModelConfig) -> None:
        """Make the array of every operand; the packed ones are filled later."""
        for name, operand in self.lowered.operands.items():
            if operand.kind == "weight":
                self._arrays[name] = weights.matrix(gguf, name, operand)
            elif operand.kind == "vector":
                self._arrays[name] = weights.vector(gguf, name)
            elif operand.kind == "table":
                self._arrays[name] = weights.frequencies(gguf, config)
            elif operand.kind != "packed":
                self._arrays[name] = self._zeros(operand)
        shapes = {
            name: tuple(int(dim) for dim in self.lowered.operands[name].shape)
            for name in self.lowered.packed
        }
        arena = Arena([prod(shape) for shape in shapes.values()])
        for name, packed_shape in shapes.items():
            self._arrays[name] = arena.take(packed_shape)

    def forward(self, batch: Batch) -> NDArray[np.float32]:
        """See Runner."""
        if self.pool is None:
            raise DeviceError("the model is closed")
        words, lowered = self.prepare(batch)
        try:
            self.pool.run(words, len(lowered.rows), self._cancel)
        finally:
            self.begin()
        logits: NDArray[np.float32] = self._arrays["logits"][: len(batch.logits_rows)]
        return logits

    def prepare(self, batch: Batch) -> tuple[NDArray[np.int64], Lowered]:
        """Put a batch where the rows look for it; the words to walk, and the rows that they are."""
        check_batch(batch, self.limits)
        for name in BATCH_NAMES:
            given: NDArray[np.int32] = getattr(batch, name)
            held = self._arrays[name]
            if given.ndim == 1:
                held[: len(given)] = given
            else:
                held[: given.shape[0], : given.shape[1]] = given
        self._dims.set("T", len(batch.tokens))
        self._dims.set("S", len(batch.context_lens))
        self._dims.set("R", len(batch.logits_rows))
        chunks = -(-max(batch.context_lens.tolist()) // CHUNK)
        self._dims.set("chunks", chunks)
        if chunks > 1 and len(batch.tokens) <= FEW:
            return self._split_words()
        return self._whole, self.lowered

    def _split_words(self) -> tuple[NDArray[np.int64], Lowered]:
        if self._split is None:
            split = split_attention(self.lowered)
            for name, operand in chunk_operands(self.lowered).items():
                self._arrays[name] = self._zeros(operand)
            self._split = self._assemble(split), split
        return self._split

    def rows_for(self, batch: Batch | None) -> tuple[Sequence[Row], Mapping[str, Operand]]:
        """See Pausing."""
        if self.pool is None:
            raise DeviceError("the model is closed")
        lowered = self.lowered if batch is None else self.prepare(batch)[1]
        return lowered.rows, lowered.operands

    def pausing(self, batch: Batch, stops: Sequence[int]) -> Iterator[tuple[int, Arrays]]:
        """See Pausing."""
        if self.pool is None:
            raise DeviceError("the model is closed")
        words, _ = self.prepare(batch)
        each = split_words(words)
        begin = 0
        try:
            for stop in stops:
                some = np.concatenate(each[begin : stop + 1])
                some[len(some) - len(each[stop]) + BARRIER] = 1  # as the walker wants of a last row
                self.pool.run(some, stop + 1 - begin, self._cancel)
                yield stop, self._arrays
                begin = stop + 1
        finally:
            self.begin()

    def leading(self, batch: Batch) -> Leading | None:
        """See Runner."""
        return None

    def copy_block(self, source: int, target: int) -> None:
        """See Runner."""
        copy_block(self._caches(), source, target)

    def read_block(self, block: int) -> NDArray[np.uint8]:
        """See Runner."""
        return read_block(self._caches(), block)

    def write_block(self, block: int, data: NDArray[np.uint8]) -> None:
        """See Runner."""
        write_block(self._caches(), block, data)

    def _caches(self) -> list[NDArray[Any]]:
        if self.pool is None:
            raise DeviceError("the model is closed")
        operands = self.lowered.operands
        return [self._arrays[name] for name, op in operands.items() if op.kind == "cache"]

    def begin(self) -> None:
        """See Runner."""
        self._cancel[0] = 0

    def cancel(self) -> None:
        """See Runner."""
        self._cancel[0] = 1

    def close(self) -> None:
        """See Runner."""
        self.pool = None
        self._arrays.clear()


def largest_sizes(limits: Limits) -> dict[str, int]:
    """The most that each symbol of a plan can be."""
    return {
        "T": limits.max_tokens,
        "S": limits.max_sequences,
        "R": limits.max_logits_rows,
        "B": -(-limits.n_ctx // limits.block_tokens),
        "n_blocks": limits.n_blocks,
        "chunks": -(-limits.n_ctx // CHUNK),
    }


def memory_needed(lowered: Lowered, limits: Limits) -> dict[str, int]:
    """Bytes by use: weights (packed, and vectors), KV cache, buffers."""
    sizes = largest_sizes(limits)
    uses = {"packed": "weights", "vector": "weights", "table": "weights", "cache": "kv"}
    needed = {"weights": 0, "kv": 0, "buffers": 0}
    for operand in (*lowered.operands.values(), *chunk_operands(lowered).values()):
        if operand.kind == "weight":
            continue  # mapped: pages of the file, which may be let go
        n = np.dtype(DTYPES[operand.dtype]).itemsize
        for dim in operand.shape:
            n *= sizes[dim] if isinstance(dim, str) else dim
        needed[uses.get(operand.kind, "buffers")] += n
    return needed
