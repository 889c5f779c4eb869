"""How close a small random model of every block format comes to the truth.

    python bench/formats.py [--types q4_0,q4_k] [--tokens 128] [--seeds 2] [--save FILE]

For each format a model of two layers with all its matrices in it, rows of 256 and 512, and random
weights; the truth is a float64 forward pass of the weights as the gguf package dequantises them.
Printed are the mean KL divergence of the logits from it, in nats, over all tokens of all seeds:
"fast" as by default, "exact" with precision="exact" and a cache in f32, which is to be below 1e-6.
"Kernel" is what multiplies in fast mode: int8 is the tuned one on int8 activations, f32 the tuned
one on floats, portable the one that serves every format. "Memory" is what the matrices take when
they are loaded, over what they take in the file. Models and truth are those of tests/.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from golden import MODES
from report import about, publish, table

from llama3jit.devices.choose import open_runner
from llama3jit.devices.cpu.runner import CpuRunner
from llama3jit.files.gguf import open_gguf
from llama3jit.model.batch import Piece, make_batch
from llama3jit.model.config import read_config
from llama3jit.ops.dequantise import FORMATS

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT / "tests"), str(ROOT / "tests" / "devices")]

from float64_llama import forward, mean_kl  # noqa: E402
from tiny_model import TinyModel, tiny_model  # noqa: E402

BAR = 1e-6
SIZES = {"n_embd": 256, "n_ff": 512, "n_layer": 2, "vocab": 300}
HEAD = ["type", "bits", "kernel", "memory", "fast", "exact", "below 1e-6"]


@dataclass(frozen=True, slots=True)
class Line:
    """One format: mean KL by mode."""

    kind: str
    bits: float  # of a weight in the file
    kernel: str
    memory: float
    kl: dict[str, float]

    def cells(self) -> list[str]:
        """A row of the table."""
        numbers = [f"{self.kl[mode]:.1e}" for mode in MODES]
        within = "yes" if self.kl["exact"] < BAR else "no"
        memory = f"{self.memory:.3f}"
        return [self.kind, f"{self.bits:.2f}", self.kernel, memory, *numbers, within]


def measure(kind: str, n_tokens: int, seeds: int, folder: Path, threads: int) -> Line:
    """A model for each seed, in both modes."""
    found: dict[str, list[float]] = {mode: [] for mode in MODES}
    for seed in range(seeds):
        path = folder / f"{kind}-{seed}.gguf"
        tiny = tiny_model(path, formats={"*": kind.upper()}, seed=seed, **SIZES)
        ids = np.random.default_rng(seed).integers(0, SIZES["vocab"], n_tokens).tolist()
        truth = forward(tiny, ids)
        for mode, options in MODES.items():
            logits, about_runner = run(tiny, ids, threads, options)
            found[mode].append(mean_kl(truth, logits))
            if mode == "fast":
                kernel, memory, bits = about_runner
        path.unlink()
    kl = {mode: float(np.mean(values)) for mode, values in found.items()}
    return Line(kind.upper(), bits, kernel, memory, kl)


def run(
    tiny: TinyModel, ids: list[int], threads: int, options: Any
) -> tuple[Any, tuple[str, float, float]]:
    """Logits [T, vocab] of all tokens in one pass; the kernel, the share of the file's bytes that
    its matrices take in memory, and the file's bits a weight."""
    with open_gguf(tiny.path) as gguf:
        runner = open_runner(
            gguf,
            read_config(gguf),
            device="cpu",
            n_ctx=len(ids),
            threads=threads,
            max_tokens=len(ids),
            **options,
        )
        assert isinstance(runner, CpuRunner)
        blocks = range(-(-len(ids) // 64))
        logits = runner.forward(make_batch([Piece(ids, 0, blocks, "all")])).copy()
        matrices = [t for t in gguf.tensors.values() if len(t.shape) == 2 and "blk" in t.name]
        in_file = sum(t.nbytes for t in matrices)
        values = sum(int(np.prod(t.shape)) for t in matrices)
        packed = [
            runner._arrays[name].nbytes
            for name, (weight, _) in runner.lowered.packed.items()
            if "blk" in weight
        ]
        units = {unit for unit in runner.lowered.units if unit.op.startswith("matmul")}
        (unit,) = units
        runner.close()
    tuned = {"matmul_int8": "int8", "matmul": "f32"}[unit.op]
    kernel = tuned if unit.module.startswith("kernels_cpu") else "portable"
    memory = sum(packed) / in_file if packed else 1.0
    return logits, (kernel, memory, 8 * in_file / values)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Closeness to float64, format by format.")
    parser.add_argument("--types", default=",".join(FORMATS))
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--threads", "-t", type=int, default=2)
    parser.add_argument("--save", type=Path, help="a file that the table is added to")
    return parser.parse_args()


def main() -> int:
    given = options()
    facts = about(tokens=given.tokens, seeds=given.seeds)
    with tempfile.TemporaryDirectory() as folder:
        lines = [
            measure(kind, given.tokens, given.seeds, Path(folder), given.threads)
            for kind in given.types.split(",")
        ]
    text = table(HEAD, [line.cells() for line in lines])
    publish("Closeness of every format to float64", text, facts, given.save)
    return int(any(line.kl["exact"] >= BAR for line in lines))


if __name__ == "__main__":
    sys.exit(main())
