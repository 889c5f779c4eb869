"""What this machine can do at most, measured on a pool's own threads; see machine_kernels.py."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from typing import Any

import machine_kernels
import numpy as np
from numpy.typing import NDArray

from llama3jit.compile import entry
from llama3jit.compile.library import Library
from llama3jit.compile.units import Unit
from llama3jit.devices.cpu.assemble import Dims
from llama3jit.devices.cpu.pool import Pool

Int64 = NDArray[np.int64]

SWEEPS = ("", "ahead")
TASKS, ROUNDS = 512, 2000
OPERATIONS = {"int8_peak": 128, "f32_peak": 32}  # of one instruction
UNITS = [
    Unit("bench.machine_kernels", name, variant)
    for name, variants in {
        "sweep": SWEEPS,
        "int8_peak": ("",),
        "f32_peak": ("",),
        "stamp": ("",),
    }.items()
    for variant in variants
]


class Machine:
    """The pool's threads and the memory that is swept: arrays, each once, in their order."""

    def __init__(self, pool: Pool, arrays: list[NDArray[Any]]) -> None:
        self.pool = pool
        self._library = Library(UNITS)
        self._dims = Dims(())
        self._cancel = np.zeros(1, np.int64)
        self._kept: list[NDArray[Any]] = list(arrays)
        spans = merged([(int(a.ctypes.data), a.nbytes) for a in arrays])
        self.swept = sum(size for _, size in spans)  # bytes
        self._sweeps = {variant: self._sweep_rows(spans, variant) for variant in SWEEPS}
        width = machine_kernels.SUMS * machine_kernels.LANES
        self._peaks = {
            name: self.record(
                name,
                {"out": self._zeros((TASKS, width), dtype), "rounds": ROUNDS}
                | ({"x": self._zeros((64,), "uint8")} if name == "int8_peak" else {}),
                {"tasks": TASKS, "width": width},
            )
            for name, dtype in (("int8_peak", "int8"), ("f32_peak", "float32"))
        }

    def sweep(self, variant: str) -> float:
        """Bytes a second of one reading of everything."""
        rows = self._sweeps[variant]
        words = np.concatenate(rows)
        return self.swept / self.seconds(words, len(rows))

    def peak(self, name: str) -> float:
        """Operations a second of "int8_peak" or "f32_peak"."""
        done = TASKS * ROUNDS * machine_kernels.SUMS * OPERATIONS[name]
        return done / self.seconds(self._peaks[name], 1)

    def seconds(self, words: Int64, n_rows: int) -> float:
        """The time of one pass over rows."""
        tickets = np.zeros(n_rows, np.int64)
        began = time.perf_counter_ns()
        self.pool.run(words, n_rows, tickets, self._cancel)
        return (time.perf_counter_ns() - began) / 1e9

    def record(
        self,
        name: str,
        values: Mapping[str, int],
        dims: Mapping[str, int],
        variant: str = "",
        barrier: bool = True,
    ) -> Int64:
        """The words of one row: an op of machine_kernels on addresses and whole numbers."""
        unit = Unit("bench.machine_kernels", name, variant)
        index = entry.words(getattr(machine_kernels, name))
        words = np.zeros(entry.HEADER_WORDS + len(index), np.int64)
        words[:4] = (
            self._library.address(unit, "entry"),
            self._library.address(unit, "count"),
            words.nbytes,
            barrier,
        )
        for key, value in values.items():
            words[index[key]] = value
        for key, size in dims.items():
            words[index[f"dim {key}"]] = self._dims.address(size)
        return words

    def _sweep_rows(self, spans: list[tuple[int, int]], variant: str) -> list[Int64]:
        rows = []
        for address, size in spans:
            pieces = -(-size // machine_kernels.PIECE)
            values = {"out": self._zeros((pieces, 64), "uint8"), "data": address}
            dims = {"pieces": pieces, "n_bytes": size}
            last = address == spans[-1][0]
            rows.append(self.record("sweep", values, dims, variant, barrier=last))
        return rows

    def _zeros(self, shape: tuple[int, ...], dtype: str) -> int:
        """The address of an array that lives as long as this."""
        self._kept.append(np.zeros(shape, dtype))
        return int(self._kept[-1].ctypes.data)


def merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Spans (address, bytes) in ascending order, those that touch or overlap made one."""
    found: list[tuple[int, int]] = []
    for address, size in sorted(spans):
        if found and address <= sum(found[-1]):
            first, length = found[-1]
            found[-1] = (first, max(length, address + size - first))
        else:
            found.append((address, size))
    return found


def pin(threads: int) -> bool:
    """Put the calling thread and the pool's workers on a processor each; whether that was done."""
    if not hasattr(os, "sched_setaffinity"):
        return False
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < threads:
        return False
    names = {f"llama3jit-{i}": cpus[i] for i in range(1, threads)}
    for thread in threading.enumerate():
        if thread.name in names and thread.native_id is not None:
            os.sched_setaffinity(thread.native_id, {names[thread.name]})
    os.sched_setaffinity(0, {cpus[0]})
    return True
