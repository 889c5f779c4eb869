"""llama.cpp's side of peers_cpu.py, run by an interpreter that has llama-cpp-python.

It calls llama_decode itself, as llama-bench does: the wrapper's `eval` copies logits and would be
measured with it. Batches of 512 tokens, the cache in f16, flash attention as the library decides,
logits of a batch's last token alone, a synchronisation after a prompt and after each generated
token.
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

    def __init__(self, path: str, n_ctx: int, threads: int) -> None:
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_model_load_from_file(
            path.encode(), llama_cpp.llama_model_default_params()
        )
        if not self.model:
            sys.exit(f"llama.cpp cannot load {path}")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = n_ctx
        params.n_batch = params.n_ubatch = BATCH
        params.n_threads = params.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        if not self.context:
            sys.exit(f"llama.cpp cannot make a context of {n_ctx} tokens")
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
            status = llama_cpp.llama_decode(self.context, batch)
            if status != 0:
                sys.exit(f"llama_decode returned {status}")
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
            self.decode(0, n_depth)
            self.deep = n_depth
        ns = 0
        for _ in range(2):
            llama_cpp.llama_memory_seq_rm(self.memory, 0, n_depth, -1)
            began = time.perf_counter_ns()
            self.work(n_prompt, n_gen, n_depth)
            ns = time.perf_counter_ns() - began
        return ns


def main() -> None:
    given = arguments()
    side = Side(given.model, given.n_ctx, given.threads)
    flags = llama_cpp.llama_print_system_info().decode()
    used = [flag.split("=")[0].strip() for flag in flags.split("|") if "= 1" in flag]
    about = {
        "name": f"llama-cpp-python {llama_cpp.__version__}",
        "build": " ".join(name.removeprefix("CPU : ") for name in used),
    }
    serve(about, given.threads, side.sample)


if __name__ == "__main__":
    main()
