"""How long each row of a pass takes inside the pass, and what it has to do.

The pool walks the words that the runner would walk, but with a row that reads the clock behind each
row, and a barrier behind both; two such rows in front say what reading it costs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from machine import Machine
from numpy.typing import NDArray

from llama3jit import ops
from llama3jit.devices.cpu.lower import Lowered, split_attention, written
from llama3jit.devices.cpu.runner import CpuRunner
from llama3jit.model.batch import Batch
from llama3jit.model.plan import Operand, Row
from llama3jit.ops.signature import DTYPES

Int64 = NDArray[np.int64]
ROW_BYTES, BARRIER = 2, 3  # words of a row
GATHERS = ("embed", "select_rows")  # these read as many rows of a matrix as they write


@dataclass(frozen=True, slots=True)
class Work:
    """What a row is, and the least that it must do: operations, and bytes in and out of memory if
    each array is read or written once. `int8` if its products are of bytes."""

    op: str
    shape: str
    operations: float
    nbytes: float
    int8: bool


class Pass:
    """One batch on a runner, to be run again and again, whole or row by row."""

    def __init__(self, runner: CpuRunner, batch: Batch, machine: Machine) -> None:
        self.runner, self.batch, self._machine = runner, batch, machine
        words, n_rows = words_of(runner, batch)
        self.lowered = lowered_of(runner, n_rows)
        self._stamps = np.zeros(n_rows + 2, np.int64)
        self._words = self._with_stamps(words, n_rows)

    def seconds(self) -> tuple[float, float]:
        """Of one forward pass as it is, and the share of them that its threads were running."""
        began, ran = time.perf_counter_ns(), time.process_time_ns()
        self.runner.forward(self.batch)
        ran, took = time.process_time_ns() - ran, time.perf_counter_ns() - began
        return took / 1e9, ran / took / self._machine.pool.threads

    def row_cycles(self) -> Int64:
        """[1 + rows] of one pass with stamps, in cycles of the clock: first what a stamp takes,
        which is in each of the rows too."""
        self.runner.forward(self.batch)  # sets what the rows point to
        self._machine.seconds(self._words, 2 * len(self._stamps) - 2)
        return np.diff(self._stamps)

    def _with_stamps(self, words: Int64, n_rows: int) -> Int64:
        parts = [self._stamp(0), self._stamp(1)]
        at = 0
        for i in range(n_rows):
            end = at + int(words[at + ROW_BYTES]) // 8
            record = words[at:end].copy()
            record[BARRIER] = 1
            parts += [record, self._stamp(i + 2)]
            at = end
        assert at == len(words)
        return np.concatenate(parts)

    def _stamp(self, at: int) -> Int64:
        values = {"out": int(self._stamps.ctypes.data), "at": at}
        return self._machine.record("stamp", values, {"n": len(self._stamps)})


def words_of(runner: CpuRunner, batch: Batch) -> tuple[Int64, int]:
    """The words that the runner has its pool walk for a batch, and how many rows they are."""
    pool = runner.pool
    assert pool is not None
    run = pool.run
    seen: list[tuple[Int64, int]] = []

    class Watched:
        """The pool, overheard."""

        def run(self, words: Int64, n_rows: int, *rest: Any) -> None:
            seen.append((words, n_rows))
            run(words, n_rows, *rest)

    runner.pool = Watched()  # type: ignore[assignment]
    try:
        runner.forward(batch)
    finally:
        runner.pool = pool
    (found,) = seen
    return found


def lowered_of(runner: CpuRunner, n_rows: int) -> Lowered:
    """The rows that so many rows of words were made of."""
    if n_rows == len(runner.lowered.rows):
        return runner.lowered
    split = split_attention(runner.lowered)
    assert n_rows == len(split.rows)
    return split


def clock_rate(machine: Machine) -> float:
    """Cycles of the clock a second."""
    stamps = np.zeros(2, np.int64)
    times = []
    for at in range(2):
        values = {"out": int(stamps.ctypes.data), "at": at}
        words = machine.record("stamp", values, {"n": 2})
        machine.seconds(words, 1)  # wakes the threads
        machine.seconds(words, 1)
        times.append(time.perf_counter())
        time.sleep(0.2 * (1 - at))
    return float(stamps[1] - stamps[0]) / (times[1] - times[0])


def work_of(
    row: Row, lowered: Lowered, batch: Batch, matrices: Mapping[str, tuple[int, int]]
) -> Work:
    """What a row does for a batch; `matrices` has the rows and columns of the file's weights."""
    op = ops.find(row.op)
    operands = {
        name: lowered.operands[name] for name in row.operands.values() if isinstance(name, str)
    }
    sizes = {"T": len(batch.tokens), "S": len(batch.starts) - 1, "R": len(batch.logits_rows)}
    sizes |= {"B": batch.block_tables.shape[1]}
    first = operands[written(op, row)[0]]
    window = int(row.operands.get("window", 0)) or 2**30
    buffer = next(operand for operand in operands.values() if operand.kind == "buffer")
    nbytes, products, shape = 0.0, 0.0, " x ".join(map(str, buffer.shape))
    for name, operand in operands.items():
        weight = lowered.packed[name][0] if name in lowered.packed else name
        if operand.kind == "cache":
            seen = min(int(batch.context_lens.sum()), window + sizes["T"] - 1)
            nbytes += token_bytes(operand) * (sizes["T"] if row.op == "kv_append" else seen)
        elif row.op in GATHERS and operand is not first and len(operand.shape) > 1:
            nbytes += bytes_of(replace(operand, shape=(first.shape[0], *operand.shape[1:])), sizes)
        else:
            nbytes += bytes_of(operand, sizes)
            if weight in matrices:
                n, k = matrices[weight]
                products += float(sizes[str(first.shape[0])] * n * k)
                shape = f"{n} x {k}"
    if row.op in ("attention", "attention_chunks"):
        _, heads, head_dim = operands[str(row.operands["q"])].shape
        products = 2.0 * int(heads) * int(head_dim) * seen_by(batch, window)
    name = f"{row.op} {row.variant}".strip()
    return Work(name, shape, 2.0 * products, nbytes, row.op == "matmul_int8")


def seen_by(batch: Batch, window: int) -> float:
    """How many tokens all tokens of a batch see together."""
    return float(np.minimum(batch.positions.astype(np.int64) + 1, window).sum())


def bytes_of(operand: Operand, sizes: Mapping[str, int]) -> float:
    """Of an array at the sizes of a pass; what has a dim of another name is left out."""
    dims = [sizes.get(dim, 0) if isinstance(dim, str) else dim for dim in operand.shape]
    return float(prod(dims) * np.dtype(DTYPES[operand.dtype]).itemsize)


def token_bytes(operand: Operand) -> float:
    """What one token takes of a cache array [n_blocks, ...], whose blocks hold 64."""
    from llama3jit.model.plan import BLOCK_TOKENS

    each = prod(int(dim) for dim in operand.shape[1:])
    return each * np.dtype(DTYPES[operand.dtype]).itemsize / BLOCK_TOKENS
