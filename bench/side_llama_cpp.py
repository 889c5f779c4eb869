"""llama.cpp's side of peers_cpu.py, run by an interpreter that has llama-cpp-python.

It calls llama_decode itself, as llama-bench does: the wrapper's `eval` copies logits and would be
measured with it. Batches of 512 tokens, the cache in f16, flash attention as the library decides,
logits of a batch's last token alone, a synchronisation after a prompt and after each generated
token. Several sequences decode as in llama-batched-bench: a token of each in a batch, with logits.
"""

from __future__ import annotations

import ctypes
import random
import sys
import time

import llama_cpp
from side import arguments, serve

BATCH = 512


class Side:
    """A model and a context."""

    def __init__(self, path: str, n_ctx: int, threads: int, sequences: int) -> None:
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_model_load_from_file(
            path.encode(), llama_cpp.llama_model_default_params()
        )
        if not self.model:
            sys.exit(f"llama.cpp cannot load {path}")
        params = llama_cpp.llama_context_default_params()
        each = n_ctx if sequences == 1 else -(-n_ctx // 256) * 256  # it rounds up to that
        params.n_ctx = each * sequences
        params.n_seq_max = self.sequences = sequences
        params.n_batch = params.n_ubatch = BATCH
        params.n_threads = params.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        if not self.context:
            sys.exit(f"llama.cpp cannot make a context of {sequences} x {n_ctx} tokens")
        self.memory = llama_cpp.llama_get_memory(self.context)
        vocab = llama_cpp.llama_model_get_vocab(self.model)
        ids = random.Random(0)
        n_vocab = llama_cpp.llama_vocab_n_tokens(vocab)
        self.tokens = [ids.randrange(n_vocab) for _ in range(n_ctx)]
        first_id = llama_cpp.llama_vocab_bos(vocab)
        if first_id >= 0:
            self.tokens[0] = first_id
        self.deep = 0  # tokens that the cache holds and that a sample leaves alone

    def decode(self, begin: int, end: int) -> None:
        """Tokens begin:end in batches; the positions follow those in the cache."""
        for at in range(begin, end, BATCH):
            part = self.tokens[at : min(at + BATCH, end)]
            array = (llama_cpp.llama_token * len(part))(*part)
            batch = llama_cpp.llama_batch_get_one(
                ctypes.cast(array, ctypes.POINTER(llama_cpp.llama_token)), len(part)
            )
            self.submit(batch)
        llama_cpp.llama_synchronize(self.context)

    def work(self, n_prompt: int, n_gen: int, n_depth: int) -> None:
        """What is timed."""
        if n_prompt:
            self.decode(n_depth, n_depth + n_prompt)
        for i in range(n_gen):
            self.decode(n_depth + n_prompt + i, n_depth + n_prompt + i + 1)

    def sample(self, n_prompt: int, n_gen: int, n_depth: int) -> int:
        """One untimed run, then the timed one; the first n_depth tokens stay in the cache."""
        if self.deep != n_depth:
            llama_cpp.llama_memory_clear(self.memory, True)
            self.fill(n_depth)
            self.deep = n_depth
        steps = [] if self.sequences == 1 else self.steps(n_gen, n_depth)
        ns = 0
        for _ in range(2):
            for s in range(self.sequences):
                llama_cpp.llama_memory_seq_rm(self.memory, s, n_depth, -1)
            began = time.perf_counter_ns()
            if self.sequences == 1:
                self.work(n_prompt, n_gen, n_depth)
            for step in steps:
                self.submit(step)
                llama_cpp.llama_synchronize(self.context)
            ns = time.perf_counter_ns() - began
        for step in steps:
            llama_cpp.llama_batch_free(step)
        return ns

    def fill(self, n_depth: int) -> None:
        """The first tokens of every sequence."""
        if self.sequences == 1:
            self.decode(0, n_depth)
            return
        for s in range(self.sequences):
            for begin in range(0, n_depth, BATCH):
                at = range(begin, min(begin + BATCH, n_depth))
                batch = self.batch([(self.tokens[i], i, s) for i in at], every=False)
                self.submit(batch)
                llama_cpp.llama_batch_free(batch)

    def steps(self, n_gen: int, n_depth: int) -> list[llama_cpp.llama_batch]:
        """Batches of a token of each sequence; sequences begin at other places of the same ids."""
        return [
            self.batch(
                [
                    (self.tokens[(at + 17 * s) % len(self.tokens)], at, s)
                    for s in range(self.sequences)
                ],
                every=True,
            )
            for at in range(n_depth, n_depth + n_gen)
        ]

    def batch(self, entries: list[tuple[int, int, int]], *, every: bool) -> llama_cpp.llama_batch:
        """Of (token, position, sequence), with logits of every one or of the last alone."""
        batch = llama_cpp.llama_batch_init(len(entries), 0, 1)
        batch.n_tokens = len(entries)
        for i, (token, position, sequence) in enumerate(entries):
            batch.token[i] = token
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = every or i + 1 == len(entries)
        return batch

    def submit(self, batch: llama_cpp.llama_batch) -> None:
        """llama_decode, which must succeed."""
        status = llama_cpp.llama_decode(self.context, batch)
        if status != 0:
            sys.exit(f"llama_decode returned {status}")


def main() -> None:
    given = arguments()
    side = Side(given.model, given.n_ctx, given.threads, given.sequences)
    flags = llama_cpp.llama_print_system_info().decode()
    used = [flag.split("=")[0].strip() for flag in flags.split("|") if "= 1" in flag]
    about = {
        "name": f"llama-cpp-python {llama_cpp.__version__}",
        "build": " ".join(name.removeprefix("CPU : ") for name in used),
    }
    serve(about, given.threads, side.sample)


if __name__ == "__main__":
    main()
