"""From the start of a process to the first token, llama3jit and llama-cpp-python in turn.

    python bench/startup.py --peer-python PATH [--model MODEL ...] [--vocabulary FILE] [--json]

Each run is a fresh process that imports its package, loads the model, encodes a short prompt and
completes it by one token, greedily; the clock starts when the process is spawned and stops when the
token's line arrives. One run of each is not counted: it fills the page cache, and ours may compile.
Sides take turns at going first, and what counts is the ratio of a pair. With --vocabulary, the same
for a file's tokenizer alone. peers_cpu.py says how to build llama-cpp-python.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from llama3jit.errors import Llama3JitError
from llama3jit.files.store import resolve

HERE = Path(__file__).parent
PROMPT = "The capital of France is"


@dataclass(frozen=True, slots=True)
class Run:
    """Seconds since the spawn: the interpreter ran, the model was loaded, the token was there."""

    began: float
    loaded: float
    token: float


@dataclass(frozen=True, slots=True)
class Table:
    """Runs of both sides, pair by pair."""

    name: str
    ours: list[Run]
    theirs: list[Run]

    @property
    def ratios(self) -> list[float]:
        return [a.token / b.token for a, b in zip(self.ours, self.theirs, strict=True)]


def start(python: str, script: str, arguments: list[str]) -> tuple[Run, dict[str, Any]]:
    """One fresh process."""
    command = [python, str(HERE / script), *arguments]
    # The package is run from its source tree: without its .pyc files each run would compile it.
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    spawned = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        process.stdout.readline()
        token = time.monotonic()
        rest = process.stdout.read()
    if process.returncode:
        raise SystemExit(f"{script} ended with status {process.returncode}")
    about = json.loads(rest)
    return Run(about["began"] - spawned, about["loaded"] - spawned, token - spawned), about


def compare(name: str, peer_python: str, arguments: list[str], runs: int) -> Table:
    """Pairs of runs; who goes first changes from pair to pair."""
    table = Table(name, [], [])
    sides = [
        (sys.executable, "start_llama3jit.py", table.ours),
        (peer_python, "start_llama_cpp.py", table.theirs),
    ]
    found = [start(python, script, arguments)[1] for python, script, _ in sides]
    if found[0]["ids"] != found[1]["ids"]:
        raise SystemExit(f"the prompt's ids differ: {found[0]['ids']} and {found[1]['ids']}")
    for i in range(runs):
        for python, script, kept in sides if i % 2 == 0 else reversed(sides):
            run, about = start(python, script, arguments)
            if about["compilers"]:
                raise SystemExit(f"the run imported {' and '.join(about['compilers'])}")
            kept.append(run)
        print(f"{name}: pair {i + 1} of {runs}: {table.ratios[-1]:.2f}", file=sys.stderr)
    return table


def markdown(tables: list[Table]) -> str:
    """A line for each table: medians, in milliseconds."""
    text = [
        "| | llama3jit ms | llama-cpp-python ms | ratio | lowest | highest | ours loaded |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for table in tables:
        ours, theirs = (
            1e3 * statistics.median(run.token for run in side)
            for side in (table.ours, table.theirs)
        )
        loaded = 1e3 * statistics.median(run.loaded for run in table.ours)
        ratios = table.ratios
        text.append(
            f"| {table.name} | {ours:.0f} | {theirs:.0f} | {statistics.median(ratios):.2f} "
            f"| {min(ratios):.2f} | {max(ratios):.2f} | {loaded:.0f} |"
        )
    return "\n".join(text)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare the time to the first token.")
    parser.add_argument("--peer-python", required=True, help="an interpreter with llama_cpp")
    parser.add_argument("--model", action="append", help="a name or a GGUF file; may be repeated")
    parser.add_argument("--vocabulary", action="append", default=[], help="a GGUF file; repeatable")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--threads", "-t", type=int, default=2)
    parser.add_argument("--n-ctx", type=int, default=2048)
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument("--json", action="store_true", help="every run, as JSON")
    return parser.parse_args()


def main() -> None:
    given = options()
    try:
        models = [Path(resolve(name)) for name in given.model or ["smollm2-135m-instruct"]]
    except Llama3JitError as error:
        raise SystemExit(str(error)) from None
    tables = []
    for path in models:
        arguments = [str(path), str(given.threads), str(given.n_ctx), given.prompt]
        tables.append(compare(path.name, given.peer_python, arguments, given.runs))
    for file in given.vocabulary:
        arguments = ["--vocabulary", str(Path(file).resolve()), given.prompt]
        name = f"tokenizer of {Path(file).name}"
        tables.append(compare(name, given.peer_python, arguments, given.runs))
    if given.json:
        print(json.dumps([{**asdict(table), "ratios": table.ratios} for table in tables], indent=2))
    else:
        print(markdown(tables))


if __name__ == "__main__":
    main()
