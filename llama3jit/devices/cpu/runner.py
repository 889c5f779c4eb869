"""A model on the CPU: weights packed, rows assembled, passes run by the pool."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llama3jit.compile.library import Library, Progress
from llama3jit.compile.units import Unit
from llama3jit.devices import Limits
from llama3jit.devices.check import check_batch
from llama3jit.devices.cpu.arena import Arena
from llama3jit.devices.cpu.assemble import Dims, assemble
from llama3jit.devices.cpu.lower import Lowered, lower
from llama3jit.devices.cpu.pool import WALKER, Pool, get_pool
from llama3jit.errors import DeviceError
from llama3jit.model import weights
from llama3jit.model.batch import Batch
from llama3jit.model.config import ModelConfig
from llama3jit.model.plan import Operand, Plan, Row
from llama3jit.ops.signature import DTYPES

PACK_MODULE = "llama3jit.ops.pack"
BATCH_NAMES = ("tokens", "positions", "seq_of", "block_tables", "logits_rows")


class CpuRunner:
    """See Runner in llama3jit.devices."""

    def __init__(
        self,
        gguf: Any,
        config: ModelConfig,
        plan: Plan,
        limits: Limits,
        *,
        threads: int,
        precision: str,
        progress: Progress | None = None,
    ) -> None:
        self.limits = limits
        self.lowered = lower(plan, precision)
        packers = {Unit(PACK_MODULE, "pack", v) for _, v in self.lowered.packed.values()}
        units = [WALKER, *self.lowered.units, *sorted(packers, key=str)]
        self._library = Library(units, progress)
        self.pool: Pool | None = get_pool(threads, self._library)
        self._dims = Dims(("T", "S", "R", "B", "n_blocks"))
        self._dims.set("n_blocks", limits.n_blocks)
        self._sizes = {
            "T": limits.max_tokens,
            "S": limits.max_sequences,
            "R": limits.max_logits_rows,
            "B": -(-limits.n_ctx // limits.block_tokens),
            "n_blocks": limits.n_blocks,
        }
        self._dims.set("B", self._sizes["B"])
        self._cancel = np.zeros(1, np.int64)
        self._arrays: dict[str, NDArray[Any]] = {}
        self._gguf = gguf  # embeddings are read from the mapped file
        self._load(gguf, config)
        self._rows = assemble(
            self.lowered.rows,
            self.lowered.units,
            self.lowered.barriers,
            self.lowered.operands,
            self._arrays,
            self._dims,
            self._library,
        )
        self._tickets = np.zeros(len(self.lowered.rows), np.int64)

    def _load(self, gguf: Any, config: ModelConfig) -> None:
        """Make the array of every operand."""
        for name, operand in self.lowered.operands.items():
            if operand.kind == "weight":
                self._arrays[name] = weights.matrix(gguf, name, operand)
            elif operand.kind == "vector":
                self._arrays[name] = weights.vector(gguf, name)
            elif operand.kind == "table":
                self._arrays[name] = weights.frequencies(gguf, config)
            elif operand.kind != "packed":
                shape = [int(self._sizes.get(str(dim), dim)) for dim in operand.shape]
                self._arrays[name] = np.zeros(shape, DTYPES[operand.dtype])
        shapes = {
            name: tuple(int(dim) for dim in self.lowered.operands[name].shape)
            for name in self.lowered.packed
        }
        arena = Arena([prod(shape) for shape in shapes.values()])
        for name, (weight, variant) in self.lowered.packed.items():
            self._arrays[name] = arena.take(shapes[name])
            self._pack(gguf, name, weight, variant)
            gguf.release(weight)

    def _pack(self, gguf: Any, name: str, weight: str, variant: str) -> None:
        packed_operand = self.lowered.operands[name]
        tensor = gguf.tensors[weight]
        n = int(tensor.shape[1])
        raw = Operand("weight", "u8", (n, tensor.nbytes // n))
        row = Row("pack", {"packed": name, "weight": weight}, variant)
        arrays = {name: self._arrays[name], weight: weights.matrix(gguf, weight, raw)}
        words = assemble(
            [row],
            [Unit(PACK_MODULE, "pack", variant)],
            [True],
            {name: packed_operand, weight: raw},
            arrays,
            self._dims,
            self._library,
        )
        assert self.pool is not None
        self.pool.run(words, 1, np.zeros(1, np.int64), self._cancel)

    def forward(self, batch: Batch) -> NDArray[np.float32]:
        """See Runner."""
        if self.pool is None:
            raise DeviceError("the model is closed")
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
        self._cancel[0] = 0
        self.pool.run(self._rows, len(self.lowered.rows), self._tickets, self._cancel)
        logits: NDArray[np.float32] = self._arrays["logits"][: len(batch.logits_rows)]
        return logits

    def cancel(self) -> None:
        """See Runner."""
        self._cancel[0] = 1

    def close(self) -> None:
        """See Runner."""
        self.pool = None
        self._arrays.clear()


def memory_needed(lowered: Lowered, limits: Limits) -> dict[str, int]:
    """Bytes by use: weights (packed, and vectors), KV cache, buffers."""
    sizes = {
        "T": limits.max_tokens,
        "S": limits.max_sequences,
        "R": limits.max_logits_rows,
        "B": -(-limits.n_ctx // limits.block_tokens),
        "n_blocks": limits.n_blocks,
    }
    uses = {"packed": "weights", "vector": "weights", "table": "weights", "cache": "kv"}
    needed = {"weights": 0, "kv": 0, "buffers": 0}
    for operand in lowered.operands.values():
        if operand.kind == "weight":
            continue  # mapped: pages of the file, which may be let go
        n = np.dtype(DTYPES[operand.dtype]).itemsize
        for dim in operand.shape:
            n *= sizes[dim] if isinstance(dim, str) else dim
        needed[uses.get(operand.kind, "buffers")] += n
    return needed
