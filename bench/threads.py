"""What the thread pool costs: barriers, waking, steps, idling; and whether pinning helps.

    python bench/threads.py [--model MODEL] [-t THREADS] [--steps 200]

Times are microseconds, medians and the 95th percentile. A barrier is a row of one item after a
row of one item; a region is a pass of one row that all threads work on, with the workers asleep
or still spinning; the step's overhead is what a decode step takes beside its pass, from the arrays
of the batch to the logits. Steps are timed in turns, workers pinned to a processor each and free.
"""

from __future__ import annotations

import argparse
import os
import statistics
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from llama3jit.compile.library import Library
from llama3jit.compile.units import WALKER, Unit
from llama3jit.devices.choose import open_runner
from llama3jit.devices.cpu.assemble import Dims, assemble
from llama3jit.devices.cpu.pool import Pool
from llama3jit.devices.cpu.threads import thread_count
from llama3jit.errors import Llama3JitError
from llama3jit.files.gguf import open_gguf
from llama3jit.files.store import resolve
from llama3jit.model.batch import Piece, make_batch
from llama3jit.model.config import read_config
from llama3jit.model.plan import Operand, Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ADD = Unit("llama3jit.ops.add", "add")
ROWS = 2000
ASLEEP_S = 0.01  # by then a worker has parked
IDLE_S = 2.0
TURNS = 10


def describe(name: str, micros: list[float]) -> str:
    ordered = sorted(micros)
    p95 = ordered[min(len(ordered) - 1, round(0.95 * len(ordered)))]
    return f"| {name} | {statistics.median(ordered):.2f} | {p95:.2f} |"


def timed(work: Callable[[], Any], count: int, pause: float = 0.0) -> list[float]:
    """Microseconds of each call; before each the pool is left alone for `pause` seconds."""
    micros = []
    for _ in range(count):
        time.sleep(pause)
        began = time.perf_counter_ns()
        work()
        micros.append((time.perf_counter_ns() - began) / 1e3)
    return micros


class Passes:
    """Passes over `n_rows` rows of `items` additions each, a barrier after every one."""

    def __init__(self, pool: Pool, library: Library, n_rows: int, items: int) -> None:
        self._arrays = {name: np.zeros((items, 1), np.float32) for name in ("a", "b")}
        self._dims = Dims(())
        operands = {name: Operand("buffer", "f32", (items, 1)) for name in self._arrays}
        rows = [Row("add", {"out": "a", "x": "b"})] * n_rows
        every = [ADD] * n_rows, [True] * n_rows
        self._words = assemble(rows, *every, operands, self._arrays, self._dims, library)
        self._n_rows, self._pool = n_rows, pool
        self._tickets, self._cancel = np.zeros(n_rows, np.int64), np.zeros(1, np.int64)

    def __call__(self) -> None:
        self._pool.run(self._words, self._n_rows, self._tickets, self._cancel)


def pool_lines(threads: int) -> Iterator[str]:
    """Barriers, regions, idling."""
    library = Library([WALKER, ADD])
    pool = Pool(threads, library)
    barriers = [each / ROWS for each in timed(Passes(pool, library, ROWS, 1), 60)]
    yield describe("barrier and its row", barriers[10:])
    one = Passes(pool, library, 1, threads)
    yield describe("region, workers spinning", timed(one, 2000)[100:])
    yield describe("region, workers asleep", timed(one, 200, ASLEEP_S))
    time.sleep(ASLEEP_S)
    began = time.process_time()
    time.sleep(IDLE_S)
    used = (time.process_time() - began) / IDLE_S
    yield f"| parked workers, % of a core | {100 * used:.3f} | |"
    pool.stop()


def pin(processors: list[set[int]]) -> None:
    """Give the calling thread and each worker its processors, in order."""
    workers = sorted(
        (t for t in threading.enumerate() if t.name.startswith("llama3jit-")), key=lambda t: t.name
    )
    ids = [0, *(worker.native_id for worker in workers)]
    for thread, allowed in zip(ids, processors, strict=False):
        os.sched_setaffinity(thread or 0, allowed)


def step_lines(model: str, threads: int, steps: int) -> Iterator[str]:
    """Decode steps of a model, and what they take beside the pass."""
    with open_gguf(resolve(model)) as gguf:
        runner: Any = open_runner(gguf, read_config(gguf), threads=threads, n_ctx=2048)
        inside: list[float] = []
        run = runner.pool.run

        def measured(*arguments: Any) -> None:
            inside.extend(timed(partial(run, *arguments), 1))

        runner.pool.run = measured
        batches = [make_batch([Piece([i % 1000], i, range(i // 64 + 1))]) for i in range(steps)]
        free = sorted(os.sched_getaffinity(0))
        ways = {
            "free": [set(free)] * threads,
            "pinned": [{free[i % len(free)]} for i in range(threads)],
        }
        taken: dict[str, list[float]] = {name: [] for name in ways}
        overhead: list[float] = []
        for turn in range(TURNS + 1):
            for name, processors in ways.items():
                pin(processors)
                inside.clear()
                outside = [timed(partial(runner.forward, batch), 1)[0] for batch in batches]
                if turn:  # the first is the warm-up
                    taken[name] += outside
                    overhead += [a - b for a, b in zip(outside, inside, strict=True)]
        pin(ways["free"])
        yield describe("overhead of a step", overhead)
        for name, micros in taken.items():
            yield describe(f"decode step, workers {name}", micros)
        runner.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what the thread pool costs.")
    parser.add_argument("--model", default="smollm2-135m-instruct", help="a name or a GGUF file")
    parser.add_argument("--threads", "-t", type=int)
    parser.add_argument("--steps", type=int, default=200)
    given = parser.parse_args()
    try:
        threads = thread_count(given.threads)
        print(f"| {threads} threads | median us | p95 us |\n| --- | ---: | ---: |")
        for line in pool_lines(threads):
            print(line, flush=True)
        for line in step_lines(given.model, threads, given.steps):
            print(line, flush=True)
    except Llama3JitError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
