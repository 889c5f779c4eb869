"""What each kind of row of a forward pass takes on a GPU, beside what it moves.

    python bench/cuda_rows.py MODEL [--tokens 1,512] [--context 128] [--n-ctx 4096]

All rows of one kind (a kernel and its sizes), as they are in the pass, each with its own weights,
are one graph, which is run and timed by itself; so a row's time has the launch in it. Bytes are
those of weights, and of keys and values of the context; operations those of products, two each.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass
from typing import Any

from llama3jit.devices.choose import open_runner
from llama3jit.devices.cuda.lower import dims_of, launch_of
from llama3jit.devices.cuda.runner import CudaRunner
from llama3jit.devices.cuda.shapes import shape_of, sizes_of
from llama3jit.files.gguf import open_gguf
from llama3jit.files.store import resolve
from llama3jit.model.batch import Piece, make_batch
from llama3jit.model.config import read_config

REPEATS = 20


def time_graph(gpu: Any, graph: Any) -> float:
    """Microseconds of a graph, the median of several runs, by the device's clock."""
    from cuda.bindings import driver

    from llama3jit.devices.cuda.driver import called

    times = []
    for _ in range(REPEATS + 3):
        begin, end = (called(driver.cuEventCreate(0)) for _ in range(2))
        called(driver.cuEventRecord(begin, gpu._handle))
        gpu.run(graph)
        called(driver.cuEventRecord(end, gpu._handle))
        gpu.synchronize()
        times.append(1000 * float(called(driver.cuEventElapsedTime(begin, end))))
    return statistics.median(times[3:])


@dataclass(frozen=True, slots=True)
class Kind:
    """Rows of one kernel and of the same sizes: how many, and of each the microseconds, the bytes
    and the operations."""

    name: str
    dims: dict[str, int]
    count: int
    us: float
    nbytes: int
    operations: int


def measure(runner: CudaRunner, n_tokens: int, context: int) -> list[Kind]:
    """Each kind of row, and at the end the whole pass."""
    n_blocks = -(-(context + n_tokens) // 64)
    piece = Piece([1] * n_tokens, context, list(range(n_blocks)))
    runner.forward(make_batch([piece]))
    shape = shape_of(runner.limits, n_tokens, 1, n_blocks)
    graph, _, _ = runner._graphs[shape, False]
    lowered = runner.lower(shape)
    sizes = sizes_of(shape, runner.limits)
    _, addresses, _ = runner._batch_arrays(shape)
    addresses |= runner.buffers(lowered, shape)
    kinds: dict[Any, list[Any]] = {}
    for row, unit in zip(lowered.rows, lowered.units, strict=True):
        dims = dims_of(row, lowered.operands, sizes)
        kinds.setdefault((unit, tuple(dims.items())), []).append(row)
    found = []
    for (unit, pairs), rows in kinds.items():
        dims = dict(pairs)

        def work(unit: Any = unit, rows: Any = rows, dims: Any = dims) -> None:
            for i, row in enumerate(rows):
                arguments = runner._arguments(row, addresses, dims)
                overlap = i > 0 and unit.module.startswith("kernels_cuda.")
                kernel = runner._kernels[unit]
                runner.gpu.launch(
                    kernel, launch_of(unit, dims, runner._ways.chip), arguments, overlap=overlap
                )

        each = time_graph(runner.gpu, runner.gpu.capture(work)) / len(rows)
        nbytes = operations = 0
        if unit.op.startswith("matmul"):
            nbytes = dims["rows"] * dims["row_bytes"]
            n_in = dims.get("K") or dims.get("width") or int(rows[0].operands["K"])
            operations = 2 * dims["T"] * dims["N"] * n_in
        if unit.op.startswith("attention") and "kv_heads" in dims:
            nbytes = 4 * (context + n_tokens) * dims["kv_heads"] * dims["head_dim"]
            seen = n_tokens * context + n_tokens * (n_tokens + 1) // 2
            operations = 4 * seen * dims["heads"] * dims["head_dim"]
        name = f"{unit.op}.{unit.variant}" if unit.variant else unit.op
        found.append(Kind(name, dims, len(rows), each, nbytes, operations))
    whole = time_graph(runner.gpu, graph)
    total = sum(kind.nbytes * kind.count for kind in found)
    operations = sum(kind.operations * kind.count for kind in found)
    found.append(Kind("the whole pass", {}, 1, whole, total, operations))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the rows of a forward pass on a GPU.")
    parser.add_argument("model")
    parser.add_argument("--tokens", default="1", help="of a pass, or several numbers")
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--n-ctx", type=int, default=4096)
    given = parser.parse_args()
    gguf = open_gguf(resolve(given.model))
    runner = open_runner(gguf, read_config(gguf), device="cuda", n_ctx=given.n_ctx)
    assert isinstance(runner, CudaRunner)
    for n_tokens in map(int, given.tokens.split(",")):
        print(f"\n{n_tokens} tokens after {given.context}\n")
        print("| row | sizes | rows | us each | GB/s | TFLOP/s | us in all |")
        print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
        for kind in measure(runner, n_tokens, given.context):
            sizes = " ".join(f"{k}={v}" for k, v in kind.dims.items() if k in ("T", "N", "K", "n"))
            rate = kind.nbytes / kind.us / 1000
            print(
                f"| {kind.name} | {sizes} | {kind.count} | {kind.us:.2f} | {rate:.0f} | "
                f"{kind.operations / kind.us / 1e6:.1f} | {kind.us * kind.count:.1f} |",
                flush=True,
            )
    runner.close()


if __name__ == "__main__":
    main()
