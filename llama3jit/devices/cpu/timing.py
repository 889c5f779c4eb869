"""What each row of a pass takes on the CPU."""

from __future__ import annotations

import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from llama3jit import ops
from llama3jit.devices.cpu.assemble import split_words
from llama3jit.devices.cpu.runner import CpuRunner
from llama3jit.devices.work import TimedRow, sizes_of_batch, sizes_text, work_of
from llama3jit.model.batch import Batch

SWEPT_BYTES = 2**28


def timed_rows(runner: CpuRunner, batch: Batch, repeats: int) -> tuple[list[TimedRow], float]:
    """The rows in order, and the seconds of the whole pass; of `repeats` the medians.

    The pool walks all rows of one kernel and the same sizes, one after the other, each with its own
    weights; a row takes its share of that, the start and the end of the walk in it.
    """
    assert runner.pool is not None
    words, lowered = runner.prepare(batch)
    sizes = sizes_of_batch(batch)
    kinds: dict[tuple[str, str], list[int]] = {}
    for i, row in enumerate(lowered.rows):
        about = f"{row.op} {row.variant}".strip(), sizes_text(row, lowered.operands, sizes)
        kinds.setdefault(about, []).append(i)
    each = split_words(words)
    walks = [np.concatenate([each[i] for i in members]) for members in kinds.values()]
    # The last are those of whole passes.
    times: list[list[float]] = [[] for _ in range(len(walks) + 1)]
    cancel = np.zeros(1, np.int64)

    def walk(words: NDArray[np.int64], n_rows: int) -> float:
        assert runner.pool is not None
        began = time.perf_counter()
        runner.pool.run(words, n_rows, cancel)
        return time.perf_counter() - began

    for _ in range(repeats + 1):
        for n, (members, kind_words) in enumerate(zip(kinds.values(), walks, strict=True)):
            times[n].append(walk(kind_words, len(members)))
        began = time.perf_counter()
        runner.forward(batch)
        times[-1].append(time.perf_counter() - began)
    *medians, whole = (statistics.median(found[1:]) for found in times)
    seconds = [0.0] * len(each)
    for members, took in zip(kinds.values(), medians, strict=True):
        for i in members:
            seconds[i] = took / len(members)
    names = {i: about for about, members in kinds.items() for i in members}
    rows = [
        TimedRow(
            *names[i],
            seconds[i],
            *work_of(row, ops.find(row.op).signature, lowered.operands, sizes, batch),
        )
        for i, row in enumerate(lowered.rows)
    ]
    return rows, whole


def read_rate(threads: int, repeats: int) -> float:
    """Bytes a second of reading memory with so many threads, as NumPy does it: the least that the
    memory gives."""
    data = np.ones(SWEPT_BYTES // 8, np.int64)
    parts = np.array_split(data, threads)
    best = 0.0
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(repeats):
            began = time.perf_counter()
            list(pool.map(np.bitwise_or.reduce, parts))
            best = max(best, SWEPT_BYTES / (time.perf_counter() - began))
    return best
