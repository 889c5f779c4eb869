"""Our side of peers_cpu.py: the measuring function of `llama3jit bench`, and one like it for
sequences that decode at once."""

from __future__ import annotations

import random
import time
from importlib.metadata import version

from side import arguments, serve

from llama3jit import bench
from llama3jit.devices import Runner
from llama3jit.devices.choose import open_runner
from llama3jit.files.gguf import open_gguf
from llama3jit.model.batch import Batch, Piece, make_batch
from llama3jit.model.config import read_config
from llama3jit.version import __version__


class Together:
    """Sequences that decode at once, a token of each in a pass."""

    def __init__(self, runner: Runner, n_ctx: int, sequences: int, first_id: int | None) -> None:
        self.runner = runner
        limits = runner.limits
        ids = random.Random(0)
        self.tokens = [
            [ids.randrange(limits.vocab_size) for _ in range(n_ctx)] for _ in range(sequences)
        ]
        if first_id is not None:
            for tokens in self.tokens:
                tokens[0] = first_id
        each = -(-n_ctx // limits.block_tokens)
        self.blocks = [range(s * each, (s + 1) * each) for s in range(sequences)]

    def piece(self, s: int, begin: int, end: int) -> Piece:
        """Tokens begin:end of a sequence."""
        table = self.blocks[s][: -(-end // self.runner.limits.block_tokens)]
        return Piece(self.tokens[s][begin:end], begin, table)

    def sample(self, n_gen: int, n_depth: int) -> int:
        """One untimed run, then the timed one: n_gen passes."""
        for s in range(len(self.tokens)):
            for begin in range(0, n_depth, self.runner.limits.max_tokens):
                end = min(begin + self.runner.limits.max_tokens, n_depth)
                self.runner.forward(make_batch([self.piece(s, begin, end)]))
        steps: list[Batch] = [
            make_batch([self.piece(s, at, at + 1) for s in range(len(self.tokens))])
            for at in range(n_depth, n_depth + n_gen)
        ]
        ns = 0
        for _ in range(2):
            began = time.perf_counter_ns()
            for batch in steps:
                self.runner.forward(batch)
            ns = time.perf_counter_ns() - began
        return ns


def main() -> None:
    given = arguments()
    with open_gguf(given.model) as gguf:
        runner = open_runner(
            gguf,
            read_config(gguf),
            device="cpu",
            # All sequences share a cache of n_ctx tokens; each ends in a block of its own.
            n_ctx=given.n_ctx * given.sequences,
            threads=given.threads,
            max_sequences=given.sequences,
        )
        first_id = gguf.metadata.get("tokenizer.ggml.bos_token_id")
        names = ("numba", "llvmlite", "numpy")
        about = {
            "name": f"llama3jit {__version__}",
            "build": ", ".join(f"{name} {version(name)}" for name in names),
            "cpu": bench.cpu_name(),
        }

        together = Together(runner, given.n_ctx, given.sequences, first_id)

        def sample(n_prompt: int, n_gen: int, n_depth: int) -> int:
            """One untimed run, then the timed one."""
            if given.sequences > 1:
                return together.sample(n_gen, n_depth)
            return bench.measure(runner, bench.Test(n_prompt, n_gen, n_depth), 1, first_id)[0]

        serve(about, given.threads, sample)
        runner.close()


if __name__ == "__main__":
    main()
