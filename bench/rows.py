"""How long each row of a pass takes inside the pass, and what it has to do.

The pool walks the words that the runner would walk, but with a row that reads the clock behind each
row, and a barrier behind both; two such rows in front say what reading it costs.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from machine import Machine
from numpy.typing import NDArray

from llama3jit import ops
from llama3jit.devices.cpu.assemble import split_words
from llama3jit.devices.cpu.lower import Lowered
from llama3jit.devices.cpu.runner import CpuRunner
from llama3jit.devices.work import sizes_of_batch, sizes_text
from llama3jit.devices.work import work_of as least_work
from llama3jit.model.batch import Batch
from llama3jit.model.plan import Row

Int64 = NDArray[np.int64]
BARRIER = 3  # the word of a row that says whether one follows it


@dataclass(frozen=True, slots=True)
class Work:
    """What a row is, and the least that it must do: operations, and bytes in and out of memory if
    each array is read or written once. `int8` if its products are of bytes."""

    op: str
    shape: str
    operations: int
    nbytes: int
    int8: bool


class Pass:
    """One batch on a runner, to be run again and again, whole or row by row."""

    def __init__(self, runner: CpuRunner, batch: Batch, machine: Machine) -> None:
        self.runner, self.batch, self._machine = runner, batch, machine
        words, self.lowered = runner.prepare(batch)
        self._stamps = np.zeros(len(self.lowered.rows) + 2, np.int64)
        self._words = self._with_stamps(words)

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

    def _with_stamps(self, words: Int64) -> Int64:
        parts = [self._stamp(0), self._stamp(1)]
        for i, of_row in enumerate(split_words(words)):
            record = of_row.copy()
            record[BARRIER] = 1
            parts += [record, self._stamp(i + 2)]
        return np.concatenate(parts)

    def _stamp(self, at: int) -> Int64:
        values = {"out": int(self._stamps.ctypes.data), "at": at}
        return self._machine.record("stamp", values, {"n": len(self._stamps)})


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


def work_of(row: Row, lowered: Lowered, batch: Batch) -> Work:
    """What a row does for a batch."""
    sizes = sizes_of_batch(batch)
    signature = ops.find(row.op).signature
    nbytes, operations = least_work(row, signature, lowered.operands, sizes, batch)
    shape = sizes_text(row, lowered.operands, sizes)
    name = f"{row.op} {row.variant}".strip()
    return Work(name, shape, operations, nbytes, row.op == "matmul_int8")
