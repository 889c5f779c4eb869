"""Prompts and generation of several sequences side by side, by llama-batched-bench's method: ids
are random, nothing is sampled, and logits of every sequence come to the host with each step.

    python bench/cuda_batch.py MODEL [--sequences 1,8,32,64] [--prompt 128] [--gen 128] [--device D]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import numpy as np

from llama3jit.devices import Runner
from llama3jit.devices.choose import open_runner
from llama3jit.files.gguf import open_gguf
from llama3jit.files.store import resolve
from llama3jit.model.batch import Batch, Piece, make_batch
from llama3jit.model.config import read_config

REPEATS = 2  # after one that is not timed


def batches(
    runner: Runner, n_sequences: int, n_prompt: int, n_gen: int
) -> tuple[list[Batch], list[Batch]]:
    """Those of the prompts, as many at a time as a pass has room for, and those of the steps."""
    limits = runner.limits
    n_blocks = -(-(n_prompt + n_gen) // limits.block_tokens)
    tables = [range(s * n_blocks, (s + 1) * n_blocks) for s in range(n_sequences)]
    ids = np.random.default_rng(0).integers(0, limits.vocab_size, (n_sequences, n_prompt + n_gen))
    at_once = max(1, limits.max_tokens // n_prompt)
    prompts = [
        make_batch(
            [Piece(ids[s, :n_prompt].tolist(), 0, tables[s]) for s in range(first, end)],
        )
        for first in range(0, n_sequences, at_once)
        for end in [min(first + at_once, n_sequences)]
    ]
    steps = [
        make_batch([Piece([int(ids[s, at])], at, table) for s, table in enumerate(tables)])
        for at in range(n_prompt, n_prompt + n_gen)
    ]
    return prompts, steps


def seconds(runner: Runner, work: Sequence[Batch]) -> float:
    began = time.perf_counter()
    for batch in work:
        runner.forward(batch)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description="Several sequences side by side.")
    parser.add_argument("model")
    parser.add_argument("--sequences", default="1,8,32,64")
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--gen", type=int, default=128)
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args()
    counts = [int(count) for count in given.sequences.split(",")]
    gguf = open_gguf(resolve(given.model))
    runner = open_runner(
        gguf,
        read_config(gguf),
        device=given.device,
        n_ctx=max(counts) * (given.prompt + given.gen),
        max_sequences=max(counts),
    )
    print("| sequences | prompts, tok/s | generation, tok/s | ms a step |")
    print("| ---: | ---: | ---: | ---: |")
    for count in counts:
        prompts, steps = batches(runner, count, given.prompt, given.gen)
        best = [np.inf, np.inf]
        for i in range(REPEATS + 1):
            times = seconds(runner, prompts), seconds(runner, steps)
            if i:
                best = [min(pair) for pair in zip(best, times, strict=True)]
        print(
            f"| {count} | {count * given.prompt / best[0]:.0f} | {count * given.gen / best[1]:.0f} "
            f"| {1e3 * best[1] / given.gen:.3f} |",
            flush=True,
        )
    runner.close()


if __name__ == "__main__":
    main()
