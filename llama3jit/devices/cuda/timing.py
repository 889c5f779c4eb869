"""What each row of a pass takes on a GPU, by the device's clock."""

from __future__ import annotations

import statistics
from typing import Any

from llama3jit.compile.cuda.library import find_code
from llama3jit.compile.cuda.units import signature_of, symbol
from llama3jit.compile.units import Unit
from llama3jit.devices.cuda.lower import dims_of, launch_of
from llama3jit.devices.cuda.runner import CudaRunner
from llama3jit.devices.cuda.shapes import sizes_of
from llama3jit.devices.work import TimedRow, sizes_text, work_of
from llama3jit.model.batch import Batch

SWEEP = Unit("kernels_cuda.sweep", "read_sweep")
SWEPT_BYTES = 2**30


def timed_rows(runner: CudaRunner, batch: Batch, repeats: int) -> tuple[list[TimedRow], float]:
    """The rows in order, and the seconds of the whole pass; of `repeats` the medians.

    Rows of one kernel and the same sizes are a graph of their own, one after the other, each with
    its own weights; a row takes its share of the graph.
    """
    runner.forward(batch)
    shape = runner.shape_of(batch)
    lowered, sizes = runner.lower(shape), sizes_of(shape, runner.limits)
    _, addresses, _ = runner._batch_arrays(shape)
    addresses |= runner.buffers(lowered, shape)
    kinds: dict[Any, list[int]] = {}
    for i, (row, unit) in enumerate(zip(lowered.rows, lowered.units, strict=True)):
        dims = dims_of(row, lowered.operands, sizes)
        kinds.setdefault((unit, tuple(dims.items())), []).append(i)
    seconds = [0.0] * len(lowered.rows)
    for (unit, pairs), members in kinds.items():
        dims = dict(pairs)

        def work(unit: Unit = unit, members: Any = members, dims: Any = dims) -> None:
            for n, i in enumerate(members):
                runner.launch(lowered.rows[i], unit, addresses, dims, overlap=n > 0)

        graph = runner.gpu.capture(work)
        took = time_graph(runner.gpu, graph, repeats) / len(members)
        runner.gpu.forget(graph)
        for i in members:
            seconds[i] = took
    operands = lowered.operands
    rows = [
        TimedRow(
            f"{row.op} {unit.variant.strip(':')}".strip(),
            sizes_text(row, operands, sizes),
            took,
            *work_of(row, signature_of(row.op), operands, sizes, batch),
        )
        for row, unit, took in zip(lowered.rows, lowered.units, seconds, strict=True)
    ]
    whole, _, _ = runner._graphs[shape, False]
    return rows, time_graph(runner.gpu, whole, repeats)


def time_graph(gpu: Any, graph: Any, repeats: int) -> float:
    """Seconds of a graph, the median; three runs before do not count."""
    times: list[float] = [gpu.seconds(graph) for _ in range(repeats + 3)]
    return statistics.median(times[3:])


def read_rate(runner: CudaRunner, repeats: int) -> float:
    """Bytes a second of reading device memory and doing nothing else."""
    gpu = runner.gpu
    code = find_code([SWEEP], gpu.capability)
    kernel = gpu.load(code.images[SWEEP], code.is_ptx[SWEEP], symbol(SWEEP))
    out, data = gpu.allocate(4096), gpu.allocate(SWEPT_BYTES)
    dims = {"n": 256, "size": SWEPT_BYTES}
    launch = launch_of(SWEEP, dims, runner._ways.chip)
    graph = gpu.capture(lambda: gpu.launch(kernel, launch, [out, data, *dims.values()]))
    try:
        return SWEPT_BYTES / time_graph(gpu, graph, repeats)
    finally:
        gpu.forget(graph)
        gpu.synchronize()
        gpu.release(data)
        gpu.release(out)
