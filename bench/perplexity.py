"""Perplexity of a fixed text by a model in every type that the gguf package writes, beside
llama.cpp's on the same files.

    python bench/perplexity.py --peer-python PATH [--model MODEL] [--folder FOLDER]
        [--types q4_0,q8_0] [--save FILE]

The files are made once, into the folder, by requantise.py. Both sides score the same token ids in
the same windows, with a cache in f16; "exact" is precision="exact" with a cache in f32. The bar is
a perplexity within 0.5 % of llama.cpp's. Behind a difference stands its standard error, from the
differences of single tokens: how far off another text of the length would be expected to put it.
The last column is for "fast" and for "exact". llama.cpp rounds activations to int8 for quantised
weights, as "fast" does, so that "exact" differs from it by what that rounding does.

perplexity.txt was written for this purpose and is in the public domain (CC0).
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from golden import MODES
from numpy.typing import NDArray
from report import about, publish, table
from requantise import TYPES, requantised

import llama3jit
from llama3jit.engine.sampler import logprob
from llama3jit.engine.sequence import Visit
from llama3jit.errors import Llama3JitError
from llama3jit.files.store import resolve
from llama3jit.scoring import score_tokens, show_logits

HERE = Path(__file__).parent
TEXT = HERE / "perplexity.txt"
BAR = 0.005
HEAD = ["type", "MB", "fast", "exact", "llama.cpp", "fast to it", "exact to it", "within 0.5 %"]

Losses = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Line:
    """The losses [tokens] of one file, in nats."""

    kind: str
    nbytes: int
    ours: dict[str, Losses]  # by mode
    theirs: Losses

    def difference(self, mode: str) -> tuple[float, float]:
        """Our perplexity's relative difference from llama.cpp's, and its standard error."""
        each = self.ours[mode] - self.theirs
        return math.expm1(each.mean()), float(each.std(ddof=1)) / math.sqrt(len(each))

    def cells(self) -> list[str]:
        """A row of the table."""
        differences = [self.difference(mode) for mode in MODES]
        within = ["yes" if abs(found) <= BAR else "no" for found, _ in differences]
        perplexities = [math.exp(x.mean()) for x in (*self.ours.values(), self.theirs)]
        numbers = [f"{x:.4f}" for x in perplexities]
        numbers += [f"{found:+.2%} ± {error:.2%}" for found, error in differences]
        return [self.kind, f"{self.nbytes / 1e6:.0f}", *numbers, ", ".join(within)]


def ours(path: Path, mode: str, n_ctx: int, threads: int) -> tuple[Losses, list[int]]:
    """Our losses, and the ids of the text."""
    options: dict[str, Any] = MODES[mode]
    losses: list[float] = []
    with llama3jit.load(path, device="cpu", n_ctx=n_ctx, threads=threads, **options) as llama:
        ids = list(llama.tokenize(TEXT.read_text()))

        def run(window: list[int], visit: Visit, begin: int) -> None:
            def both(first: int, rows: NDArray[np.float32]) -> None:
                visit(first, rows)
                pairs = zip(rows, window[first + 1 :], strict=False)
                losses.extend(-logprob(row, token) for row, token in pairs)

            show_logits(llama._engine, window, both, begin)

        score = score_tokens(ids, n_ctx, run)
    assert math.isclose(score.nll, math.fsum(losses))
    return np.array(losses), ids


def theirs(python: str, path: Path, ids: list[int], n_ctx: int, threads: int) -> Losses:
    """llama.cpp's losses."""
    command = [python, str(HERE / "score_llama_cpp.py"), str(path), str(n_ctx), str(threads)]
    done = subprocess.run(command, input=json.dumps(ids), capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"llama.cpp on {path}:\n{done.stderr[-800:]}")
    found = np.array(json.loads(done.stdout))
    assert len(found) == len(ids) - 1
    return found


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Perplexity beside llama.cpp's, type by type.")
    parser.add_argument("--peer-python", required=True, help="an interpreter with llama_cpp")
    parser.add_argument("--model", default="smollm2-135m-instruct", help="a name or a GGUF file")
    parser.add_argument("--folder", type=Path, default=Path("requantised"))
    parser.add_argument("--types", default=",".join(TYPES))
    parser.add_argument("--n-ctx", type=int, default=1024)
    parser.add_argument("--threads", "-t", type=int, default=2)
    parser.add_argument("--save", type=Path, help="a file that the table is added to")
    return parser.parse_args()


def main() -> int:
    given = options()
    lines = []
    try:
        model = Path(resolve(given.model))
        facts = about(model=model.name, text=TEXT.name, n_ctx=given.n_ctx, threads=given.threads)
        files = requantised(model, given.folder, given.types.split(","))
        for kind, path in files.items():
            losses = {}
            for mode in MODES:
                losses[mode], ids = ours(path, mode, given.n_ctx, given.threads)
            peer = theirs(given.peer_python, path, ids, given.n_ctx, given.threads)
            lines.append(Line(kind.upper(), path.stat().st_size, losses, peer))
            print(" | ".join(lines[-1].cells()), file=sys.stderr)
            facts["tokens"] = str(len(ids) - 1)
    except Llama3JitError as error:
        print(f"perplexity: {error}", file=sys.stderr)
        return error.exit_code
    text = table(HEAD, [line.cells() for line in lines])
    publish(f"Perplexity of {model.name} in other types", text, facts, given.save)
    return 0


if __name__ == "__main__":
    sys.exit(main())
