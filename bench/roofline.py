"""Each op's bytes and operations a second, inside a real pass, next to what the machine can do.

    python bench/roofline.py --model MODEL [-p 512] [-n 64] [-d 0] [-r 10] [-t 2] [--save FILE]

A round is, in turn: a read sweep of the memory that holds the model's weights, by loads of 64
bytes; products of bytes and of floats from registers; a pass as it is; and a pass with a clock
behind each row. All of it runs on the same threads, each pinned to a processor. -p gives lengths of
prompts, measured -r times; -n how many passes of one token; -d how many tokens come before.

The first line of a test says how much of the sweep a whole pass reaches: the bytes of the weights
that it reads a second over the sweep's rate, the median of the rounds' ratios, the lowest and the
highest. Of the two ways to sweep, with and without asking for memory ahead, the faster counts. In
the table a row of the plan stands with all that have its op and shape: "GB/s" are the bytes of its
arrays, each once, over its median time; "GOP/s" two operations a product. They stand next to the
sweep's median and the best that the products reached in any round, that of bytes for matmul_int8
and that of floats for the rest. The share of "all" is that of the rows' sum in a pass as it is,
which has fewer barriers, but also what goes on before its first row and after its last. "Running"
is the share of a pass that its threads were on a processor; below 0.95 the figures say little.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from machine import SWEEPS, Machine, pin
from numpy.typing import NDArray
from report import about, publish, table
from rows import Pass, Work, clock_rate, work_of

from llama3jit.bench import parse_numbers
from llama3jit.devices.choose import open_runner
from llama3jit.devices.cpu.runner import CpuRunner
from llama3jit.errors import Llama3JitError
from llama3jit.files.gguf import open_gguf
from llama3jit.files.store import resolve
from llama3jit.model.batch import Batch, Piece, make_batch
from llama3jit.model.config import read_config

HEAD = ["op", "shape", "rows", "us", "share", "GB/s", "of sweep", "GOP/s", "of peak"]
BATCH = 512


@dataclass(frozen=True, slots=True)
class Rounds:
    """What the rounds gave: seconds of passes [rounds], of a stamp and of rows with one
    [rounds, 1 + rows], and the machine's bytes and operations a second [rounds]."""

    passes: list[float]
    running: list[float]  # shares of the passes' time
    rows: list[list[float]]
    sweeps: list[float]
    int8: list[float]
    f32: list[float]

    def row_seconds(self) -> NDArray[np.float64]:
        """[rows] medians, less what a stamp takes when nothing disturbs it."""
        times = np.array(self.rows)
        seconds: NDArray[np.float64] = np.median(times[:, 1:], axis=0) - times[:, 0].min()
        return np.maximum(seconds, 0)

    def of_sweep(self, nbytes: int) -> list[float]:
        """For each round, the rate of reading so many bytes in a pass over the sweep's."""
        pairs = zip(self.passes, self.sweeps, strict=True)
        return [nbytes / seconds / sweep for seconds, sweep in pairs]


def faster_sweep(machine: Machine) -> str:
    """The variant of the sweep that is faster here."""
    rates = {variant: [machine.sweep(variant) for _ in range(5)] for variant in SWEEPS}
    return max(SWEEPS, key=lambda variant: statistics.median(rates[variant]))


def measure(pass_: Pass, machine: Machine, variant: str, rounds: int) -> Rounds:
    """Everything in turn; one round before it does not count."""
    found = Rounds([], [], [], [], [], [])
    rate = clock_rate(machine)
    for i in range(rounds + 1):
        sweep = machine.sweep(variant)
        seconds, running = pass_.seconds()
        rows = (pass_.row_cycles() / rate).tolist()
        peaks = machine.peak("int8_peak"), machine.peak("f32_peak")
        if i:
            found.passes.append(seconds)
            found.running.append(running)
            found.rows.append(rows)
            found.sweeps.append(sweep)
            found.int8.append(peaks[0])
            found.f32.append(peaks[1])
    return found


def lines_of(work: list[Work], rounds: Rounds) -> list[list[str]]:
    """Rows of the same op and shape together, those that take longest first."""
    medians = rounds.row_seconds()
    sweep = statistics.median(rounds.sweeps)
    groups: dict[tuple[str, str], list[int]] = {}
    for i, row in enumerate(work):
        groups.setdefault((row.op, row.shape), []).append(i)
    lines: list[tuple[float, list[str]]] = []
    for (op, shape), members in groups.items():
        seconds = max(float(medians[members].sum()), 1e-9)
        nbytes = sum(work[i].nbytes for i in members)
        operations = sum(work[i].operations for i in members)
        peak = max(rounds.int8 if work[members[0]].int8 else rounds.f32)
        numbers = [f"{1e6 * seconds:.0f}", f"{seconds / medians.sum():.1%}"]
        numbers += [f"{nbytes / seconds / 1e9:.1f}", f"{nbytes / seconds / sweep:.0%}"]
        if operations:
            numbers += [f"{operations / seconds / 1e9:.0f}", f"{operations / seconds / peak:.0%}"]
        else:
            numbers += ["", ""]
        lines.append((seconds, [op, shape, str(len(members)), *numbers]))
    total = medians.sum()
    operations = sum(row.operations for row in work)
    nbytes = sum(row.nbytes for row in work)
    whole = statistics.median(rounds.passes)
    last = ["all", "", str(len(work)), f"{1e6 * total:.0f}", f"{total / whole:.1%}"]
    last += [f"{nbytes / total / 1e9:.1f}", f"{nbytes / total / sweep:.0%}"]
    last += [f"{operations / total / 1e9:.0f}", ""]
    lines.sort(key=lambda line: line[0], reverse=True)
    return [line for _, line in lines] + [last]


def summary(name: str, tokens: int, swept: int, rounds: Rounds) -> str:
    """What a whole pass reaches."""
    seconds = statistics.median(rounds.passes)
    ratios = rounds.of_sweep(swept)
    return (
        f"{name}: {tokens / seconds:.1f} tok/s, a pass of {1e3 * seconds:.2f} ms reads "
        f"{swept / 1e6:.0f} MB of weights, {swept / seconds / 1e9:.1f} GB/s: "
        f"{statistics.median(ratios):.0%} of the sweep ({min(ratios):.0%} to {max(ratios):.0%}). "
        f"Sweep {statistics.median(rounds.sweeps) / 1e9:.1f} GB/s, the best "
        f"{max(rounds.sweeps) / 1e9:.1f}; products of bytes {max(rounds.int8) / 1e9:.0f} GOP/s, "
        f"of floats {max(rounds.f32) / 1e9:.0f}. Running {statistics.median(rounds.running):.2f}."
    )


def batches(n_tokens: int, depth: int, vocab_size: int) -> list[Batch]:
    """The batches that fill the cache with `depth` tokens, and last the one to measure."""
    ids = np.random.default_rng(0).integers(0, vocab_size, depth + n_tokens).tolist()
    ends = [*range(BATCH, depth, BATCH), *([depth] if depth else []), depth + n_tokens]
    found = []
    for begin, end in zip([0, *ends], ends, strict=False):
        table = range(-(-end // 64))
        found.append(make_batch([Piece(ids[begin:end], begin, table)]))
    return found


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Each op next to what the machine can do.")
    parser.add_argument("--model", default="smollm2-135m-instruct", help="a name or a GGUF file")
    parser.add_argument("--n-prompt", "-p", default="512", help="lengths of prompts; 0: none")
    parser.add_argument("--n-gen", "-n", type=int, default=64, help="passes of one token; 0: none")
    parser.add_argument("--n-depth", "-d", default="0", help="tokens that come before")
    parser.add_argument("--rounds", "-r", type=int, default=10, help="passes over a prompt")
    parser.add_argument("--threads", "-t", type=int, default=2)
    parser.add_argument("--precision", choices=["fast", "exact"], default="fast")
    parser.add_argument("--save", type=Path, help="a file that the tables are added to")
    return parser.parse_args()


def run(given: argparse.Namespace, gguf: Any, facts: dict[str, str]) -> None:
    depths = list(parse_numbers(given.n_depth))
    lengths = [n for n in parse_numbers(given.n_prompt) if n]
    config = read_config(gguf)
    runner = open_runner(
        gguf,
        config,
        device="cpu",
        n_ctx=max(depths) + max([1, *lengths]),
        threads=given.threads,
        max_sequences=1,
        max_tokens=max([BATCH, *lengths]),
        precision=given.precision,
    )
    assert isinstance(runner, CpuRunner)
    assert runner.pool is not None
    read = [row for row in runner.lowered.rows if row.op.startswith("matmul")]
    names = dict.fromkeys(str(row.operands["weight"]) for row in read)
    machine = Machine(runner.pool, [runner._arrays[name] for name in names])
    if not pin(given.threads):
        facts["pinned"] = "no"
    variant = faster_sweep(machine)
    tests = [(n, given.rounds) for n in lengths] + ([(1, given.n_gen)] if given.n_gen else [])
    for depth in depths:
        for n_tokens, rounds in tests:
            *deep, measured = batches(n_tokens, depth, config.vocab_size)
            for batch in deep:
                runner.forward(batch)
            pass_ = Pass(runner, measured, machine)
            lowered = pass_.lowered
            work = [work_of(row, lowered, measured) for row in lowered.rows]
            found = measure(pass_, machine, variant, rounds)
            name = (f"pp{n_tokens}" if n_tokens > 1 else "tg") + (f" @ d{depth}" if depth else "")
            text = f"{summary(name, n_tokens, machine.swept, found)}\n\n"
            text += table(HEAD, lines_of(work, found), words=2)
            publish(f"Roofline of {facts['model']}, {name}", text, facts, given.save)
    runner.close()


def main() -> int:
    given = options()
    try:
        path = Path(resolve(given.model))
        with open_gguf(path) as gguf:
            facts = about(model=path.name, threads=given.threads, precision=given.precision)
            run(given, gguf, facts)
    except Llama3JitError as error:
        print(f"roofline: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
