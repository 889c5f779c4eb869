"""The most memory that `llama3jit generate` ever has, beside the file's size and the KV cache's.

    python bench/memory.py MODEL... [--n-ctx 2048] [--kv-dtype f16] [--save FILE]

Each model answers a prompt that fills all but 32 tokens of the context, in a process of its own,
which writes down its VmHWM (Linux) when it ends: the most memory it had in pages at any moment,
pages of the mapped file included. A run before it does not count, since it may compile kernels. The
bar is the file, the cache of n_ctx tokens, and 150 MB.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from report import about, publish, table

from llama3jit.errors import Llama3JitError
from llama3jit.files.gguf import open_gguf
from llama3jit.files.store import resolve
from llama3jit.model.config import read_config
from llama3jit.text.tokenizer import load_tokenizer

HERE = Path(__file__).parent
TEXT = HERE / "perplexity.txt"
REST = 32  # tokens that are generated
BAR = 150e6
VALUE_BYTES = {"f16": 2.0, "f32": 4.0, "q8_0": 34 / 32, "q4_0": 18 / 32}
HEAD = ["model", "file MB", "KV MB", "VmHWM MB", "beyond file and KV", "at most 150"]

# A process that is `llama3jit`, and writes its VmHWM into a file that the environment names.
CHILD = """
import atexit, os
def note():
    with open("/proc/self/status") as lines, open(os.environ["NOTE_MEMORY"], "w") as out:
        out.writelines(line for line in lines if line.startswith("VmHWM"))
atexit.register(note)
from llama3jit.cli import main
main()
"""


@dataclass(frozen=True, slots=True)
class Line:
    """Bytes of one model."""

    name: str
    file: int
    kv: int
    peak: int

    @property
    def beyond(self) -> int:
        """What the peak has beyond the file and the cache."""
        return self.peak - self.file - self.kv

    def cells(self) -> list[str]:
        """A row of the table."""
        numbers = [f"{size / 1e6:.0f}" for size in (self.file, self.kv, self.peak, self.beyond)]
        return [self.name, *numbers, "yes" if self.beyond <= BAR else "no"]


def prompt_of(path: Path, n_ctx: int) -> tuple[str, int, int]:
    """A text of n_ctx - REST tokens of a model; the bytes of its file or files; how many values of
    keys and values a token has."""
    with open_gguf(path) as gguf:
        tokenizer = load_tokenizer(gguf.metadata)
        ids = tokenizer.encode(TEXT.read_text(), add_bos=False)
        wanted = n_ctx - REST
        ids = (list(ids) * -(-wanted // len(ids)))[: wanted - 8]
        config = read_config(gguf)
        size = sum(os.path.getsize(shard) for shard in gguf.paths)
        values = 2 * config.n_layer * config.n_head_kv * config.head_dim
        return tokenizer.decode(ids), size, values


def peak_of(arguments: list[str]) -> int:
    """VmHWM of a process that runs `llama3jit` with these arguments, in bytes."""
    with tempfile.TemporaryDirectory() as folder:
        note = Path(folder) / "memory"
        root = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "NOTE_MEMORY": str(note), "PYTHONPATH": root}
        command = [sys.executable, "-c", CHILD, *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(arguments[:2])} failed: {done.stderr.strip()}")
        return int(note.read_text().split()[1]) * 1024


def measure(path: Path, n_ctx: int, kv_dtype: str, threads: int) -> Line:
    """One model, after a short run that does not count."""
    prompt, size, values = prompt_of(path, n_ctx)
    common = ["generate", str(path), "--raw", "--temperature", "0", "-c", str(n_ctx)]
    common += ["-t", str(threads), "--kv-dtype", kv_dtype]
    peak_of([*common, "-p", "Hello", "-n", "1"])
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(prompt)
        file.flush()
        peak = peak_of([*common, "-f", file.name, "-n", str(REST)])
    return Line(path.name, size, round(n_ctx * values * VALUE_BYTES[kv_dtype]), peak)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Peak memory of `llama3jit generate`.")
    parser.add_argument("models", nargs="+", help="names or GGUF files")
    parser.add_argument("--n-ctx", "-c", type=int, default=2048)
    parser.add_argument("--kv-dtype", default="f16")
    parser.add_argument("--threads", "-t", type=int, default=2)
    parser.add_argument("--save", type=Path, help="a file that the table is added to")
    return parser.parse_args()


def main() -> int:
    given = options()
    facts = about(n_ctx=given.n_ctx, kv_dtype=given.kv_dtype, threads=given.threads)
    lines = []
    try:
        for name in given.models:
            path = Path(resolve(name))
            lines.append(measure(path, given.n_ctx, given.kv_dtype, given.threads))
            print(" ".join(lines[-1].cells()), file=sys.stderr)
    except Llama3JitError as error:
        print(f"memory: {error}", file=sys.stderr)
        return error.exit_code
    text = table(HEAD, [line.cells() for line in lines])
    publish("Peak memory of generate", text, facts, given.save)
    return int(any(line.beyond > BAR for line in lines))


if __name__ == "__main__":
    sys.exit(main())
