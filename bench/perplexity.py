"""Perplexity of a fixed text by a model in every type that the gguf package writes, beside
llama.cpp's on the same files.

    python bench/perplexity.py --peer-python PATH [--model MODEL] [--folder FOLDER]
        [--types q4_0,q8_0] [--save FILE]

The files are made once, into the folder, by requantise.py. Both sides score the same token ids in
the same windows, with a cache in f16; "exact" is precision="exact" with a cache in f32. The bar is
a perplexity within 0.5 % of llama.cpp's.

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

from golden import MODES
from report import about, publish, table
from requantise import TYPES, requantised

import llama3jit
from llama3jit.errors import Llama3JitError
from llama3jit.files.store import resolve

HERE = Path(__file__).parent
TEXT = HERE / "perplexity.txt"
BAR = 0.005
HEAD = ["type", "MB", "fast", "exact", "llama.cpp", "fast to it", "exact to it", "within 0.5 %"]


@dataclass(frozen=True, slots=True)
class Line:
    """Perplexities of one file."""

    kind: str
    nbytes: int
    fast: float
    exact: float
    peer: float

    def to_peer(self, mode: str) -> float:
        """The relative difference from llama.cpp's."""
        found: float = getattr(self, mode)
        return found / self.peer - 1

    def cells(self) -> list[str]:
        """A row of the table."""
        within = all(abs(self.to_peer(mode)) <= BAR for mode in MODES)
        numbers = [f"{x:.4f}" for x in (self.fast, self.exact, self.peer)]
        numbers += [f"{self.to_peer(mode):+.2%}" for mode in MODES]
        return [self.kind, f"{self.nbytes / 1e6:.0f}", *numbers, "yes" if within else "no"]


def ours(path: Path, mode: str, n_ctx: int, threads: int) -> tuple[float, list[int]]:
    """Our perplexity of the text, and its ids."""
    options: dict[str, Any] = MODES[mode]
    with llama3jit.load(path, device="cpu", n_ctx=n_ctx, threads=threads, **options) as llama:
        ids = list(llama.tokenize(TEXT.read_text()))
        return llama.score(ids).perplexity, ids


def theirs(python: str, path: Path, ids: list[int], n_ctx: int, threads: int) -> float:
    """llama.cpp's perplexity of the ids."""
    command = [python, str(HERE / "score_llama_cpp.py"), str(path), str(n_ctx), str(threads)]
    done = subprocess.run(command, input=json.dumps(ids), capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"llama.cpp on {path}:\n{done.stderr[-800:]}")
    found = json.loads(done.stdout)
    assert found["tokens"] == len(ids) - 1
    return math.exp(found["nll"] / found["tokens"])


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Perplexity beside llama.cpp's, type by type.")
    parser.add_argument("--peer-python", required=True, help="an interpreter with llama_cpp")
    parser.add_argument("--model", default="smollm2-135m-instruct", help="a name or a GGUF file")
    parser.add_argument("--folder", type=Path, default=Path("requantised"))
    parser.add_argument("--types", default=",".join(TYPES))
    parser.add_argument("--n-ctx", type=int, default=512)
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
            fast, ids = ours(path, "fast", given.n_ctx, given.threads)
            exact, _ = ours(path, "exact", given.n_ctx, given.threads)
            peer = theirs(given.peer_python, path, ids, given.n_ctx, given.threads)
            lines.append(Line(kind.upper(), path.stat().st_size, fast, exact, peer))
            print(" ".join(lines[-1].cells()), file=sys.stderr)
            facts["tokens"] = str(len(ids) - 1)
    except Llama3JitError as error:
        print(f"perplexity: {error}", file=sys.stderr)
        return error.exit_code
    text = table(HEAD, [line.cells() for line in lines])
    publish(f"Perplexity of {model.name} in other types", text, facts, given.save)
    return 0


if __name__ == "__main__":
    sys.exit(main())
