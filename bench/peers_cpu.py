"""llama3jit and llama.cpp in turn, on the same file, the same threads and in the same minutes.

    python bench/peers_cpu.py --model MODEL --peer-python PATH [-p 512] [-n 128] [-d 0]
        [--sequences 1] [--json] [--save FILE]

Each side is a process that stays alive and runs one sample when told to. A pair is a sample of
ours and one of theirs, each after an untimed run of the same kind; sides take turns at going first.
What counts is the ratio of a pair. Other work on the machine slows both of its samples, but not
alike: a thread that waits at a barrier for one that is not running loses more. So it is noted what
share of its threads' time each side was running. A pair in which that is below 0.95 is disturbed
and another one measured, up to --patience times as many; the quietest pairs count.
Random token ids, no sampling, no tokenising: llama-bench's method on both sides. With --sequences N
prompts are left out, and N sequences decode at once, a token of each in a pass, after --n-depth
tokens each: llama-batched-bench's method, and the rate is that of all tokens together.

llama.cpp comes from llama-cpp-python's source distribution. A native build takes up AMX where the
processor names it, and dies of SIGILL on hosts that do not let it run, so the instruction sets are
spelled out (about 10 minutes on two cores):

    python -m venv peer
    CMAKE_ARGS="-DGGML_NATIVE=OFF -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON \\
      -DGGML_BMI2=ON -DGGML_AVX512=ON -DGGML_AVX512_VBMI=ON -DGGML_AVX512_VNNI=ON \\
      -DGGML_AVX512_BF16=ON -DGGML_AMX_TILE=OFF -DGGML_AMX_INT8=OFF -DGGML_AMX_BF16=OFF \\
      -DLLAVA_BUILD=OFF" \\
      peer/bin/pip install --no-binary llama-cpp-python 'llama-cpp-python==0.3.36'

and then --peer-python peer/bin/python.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from report import about, publish, table

from llama3jit.bench import Test, parse_numbers, plan_tests
from llama3jit.errors import Llama3JitError
from llama3jit.files.store import resolve

HERE = Path(__file__).parent
QUIET = 0.95  # of the threads' time
Sample = tuple[float, float]  # tokens per second, and the share of time that the process ran


class Side:
    """A process that measures."""

    def __init__(
        self, python: str, script: str, model: Path, n_ctx: int, threads: int, sequences: int
    ) -> None:
        self.script = script
        self._sequences = sequences
        self._complaint = tempfile.TemporaryFile("w+")  # noqa: SIM115 (lives as long as the side)
        numbers = map(str, (n_ctx, threads, sequences))
        command = [python, str(HERE / script), str(model), *numbers]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaint,
            text=True,
            cwd=HERE.parent,
        )
        self.about: dict[str, str] = self._answer()

    def sample(self, test: Test) -> Sample:
        """Run a test once."""
        asked = {"n_prompt": test.n_prompt, "n_gen": test.n_gen, "n_depth": test.n_depth}
        assert self._process.stdin is not None
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        answer = self._answer()
        tokens = test.n_prompt + test.n_gen * self._sequences
        return tokens * 1e9 / answer["ns"], answer["share"]

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        status = self._process.wait()
        self._complaint.seek(0)
        words = self._complaint.read().strip().splitlines()[-5:]
        raise SystemExit(f"{self.script} ended with status {status}:\n" + "\n".join(words))


@dataclass(frozen=True, slots=True)
class Line:
    """A test: the samples of both sides, pair by pair."""

    test: str
    ours: list[Sample]
    theirs: list[Sample]

    @property
    def ratios(self) -> list[float]:
        return [a / b for (a, _), (b, _) in zip(self.ours, self.theirs, strict=True)]


def compare(ours: Side, theirs: Side, test: Test, name: str, pairs: int, patience: int) -> Line:
    """Pairs of samples, of which the quietest count; who goes first changes from pair to pair."""
    taken: list[tuple[float, Sample, Sample]] = []
    quiet = 0
    while quiet < pairs and len(taken) < pairs * patience:
        first, second = (ours, theirs) if len(taken) % 2 == 0 else (theirs, ours)
        got = {side.script: side.sample(test) for side in (first, second)}
        mine, other = got[ours.script], got[theirs.script]
        share = min(mine[1], other[1])
        taken.append((share, mine, other))
        quiet += share >= QUIET
        print(f"{name}: {mine[0] / other[0]:.2f}, running {share:.2f}", file=sys.stderr)
    taken.sort(key=lambda pair: pair[0], reverse=True)
    return Line(name, [a for _, a, _ in taken[:pairs]], [b for _, _, b in taken[:pairs]])


HEAD = ["test", "llama3jit t/s", "llama.cpp t/s", "ratio", "lowest", "highest", "running"]


def cells(line: Line) -> list[str]:
    """A row of the table: medians, the extremes of the ratios, the shares of time."""
    (a, a_ran), (b, b_ran) = (middle(side) for side in (line.ours, line.theirs))
    ratios = (statistics.median(line.ratios), min(line.ratios), max(line.ratios))
    rates = [f"{a:.1f}", f"{b:.1f}"]
    return [line.test, *rates, *(f"{ratio:.2f}" for ratio in ratios), f"{a_ran:.2f}, {b_ran:.2f}"]


def middle(samples: list[Sample]) -> list[float]:
    """Medians of the rates and of the shares."""
    return [statistics.median(column) for column in zip(*samples, strict=True)]


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare with llama.cpp on the CPU.")
    parser.add_argument("--model", default="smollm2-135m-instruct", help="a name or a GGUF file")
    parser.add_argument("--peer-python", required=True, help="an interpreter with llama_cpp")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--patience", type=int, default=4)
    parser.add_argument("--n-prompt", "-p", default="512", help="lengths, as `llama3jit bench`")
    parser.add_argument("--n-gen", "-n", default="128")
    parser.add_argument("--n-depth", "-d", default="0")
    parser.add_argument("--threads", "-t", type=int, default=2)
    parser.add_argument("--sequences", type=int, default=1, help="that decode at once")
    parser.add_argument("--save", type=Path, help="a file that the table is added to")
    parser.add_argument("--json", action="store_true", help="every sample, as JSON")
    return parser.parse_args()


def check_peer(python: str) -> None:
    """Leave with the build command if the peer is not there."""
    try:
        found = subprocess.run([python, "-c", "import llama_cpp"], capture_output=True, text=True)
        problem = found.stderr.strip().splitlines()[-1:] if found.returncode else []
    except OSError as error:
        problem = [str(error)]
    if problem:
        built = (__doc__ or "").split("\n\n")[-2]
        raise SystemExit(f"{python} has no llama_cpp ({problem[0]}). To build it:\n\n{built}")


def main() -> None:
    given = options()
    check_peer(given.peer_python)
    tests = plan_tests(
        list(parse_numbers(given.n_prompt)) if given.sequences == 1 else [],
        list(parse_numbers(given.n_gen)),
        list(parse_numbers(given.n_depth)),
    )
    try:
        model = Path(resolve(given.model))
    except Llama3JitError as error:
        raise SystemExit(str(error)) from None
    numbers = max(test.n_ctx for test in tests), given.threads, given.sequences
    facts = about(model=model.name, threads=given.threads, pairs=given.pairs)
    ours = Side(sys.executable, "side_llama3jit.py", model, *numbers)
    theirs = Side(given.peer_python, "side_llama_cpp.py", model, *numbers)
    facts |= {side.about["name"]: side.about["build"] for side in (ours, theirs)}
    suffix = f" x {given.sequences}" if given.sequences > 1 else ""
    lines = [
        compare(ours, theirs, test, test.name + suffix, given.pairs, given.patience)
        for test in tests
    ]
    ours.close()
    theirs.close()
    if given.json:
        print(json.dumps({**facts, "tests": [asdict(line) for line in lines]}, indent=2))
    else:
        text = table(HEAD, [cells(line) for line in lines])
        publish(f"Beside llama.cpp: {model.name}", text, facts, given.save)


if __name__ == "__main__":
    main()
