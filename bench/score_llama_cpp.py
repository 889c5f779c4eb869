"""llama.cpp's side of perplexity.py, run by an interpreter that has llama-cpp-python.

    score_llama_cpp.py MODEL N_CTX THREADS

Token ids come as JSON on stdin; the loss of each but the first, in nats, goes to stdout.
The windows are those of llama3jit.scoring: n_ctx tokens that overlap by half, each token scored in
the first that holds it.
"""

from __future__ import annotations

import json
import math
import sys

import llama_cpp
import numpy as np


def open_context(path: str, n_ctx: int, threads: int) -> llama_cpp.llama_context_p:
    """A context whose batches are whole windows; the cache in f16, as by default."""
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(
        path.encode(), llama_cpp.llama_model_default_params()
    )
    if not model:
        sys.exit(f"llama.cpp cannot load {path}")
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = n_ctx
    params.n_threads = params.n_threads_batch = threads
    context = llama_cpp.llama_init_from_model(model, params)
    if not context:
        sys.exit(f"llama.cpp cannot make a context of {n_ctx} tokens")
    return context


def losses(context: llama_cpp.llama_context_p, window: list[int], first: int) -> list[float]:
    """Of the tokens after row `first` of a window, from the logits of the rows before them."""
    llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
    batch = llama_cpp.llama_batch_init(len(window), 0, 1)
    batch.n_tokens = len(window)
    for i, token in enumerate(window):
        batch.token[i] = token
        batch.pos[i] = i
        batch.n_seq_id[i] = 1
        batch.seq_id[i][0] = 0
        batch.logits[i] = True
    if llama_cpp.llama_decode(context, batch) != 0:
        sys.exit("llama_decode failed")
    llama_cpp.llama_batch_free(batch)
    vocab = llama_cpp.llama_model_get_vocab(llama_cpp.llama_get_model(context))
    n_vocab = llama_cpp.llama_vocab_n_tokens(vocab)
    found = []
    for i in range(first, len(window) - 1):
        row = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, i), (n_vocab,))
        wide = row.astype(np.float64)
        largest = wide.max()
        lse = largest + math.log(np.exp(wide - largest).sum())
        found.append(float(lse - wide[window[i + 1]]))
    return found


def main() -> None:
    path, n_ctx, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    tokens = json.load(sys.stdin)
    context = open_context(path, n_ctx, threads)
    found: list[float] = []
    begin, scored = 0, 1
    while scored < len(tokens):
        window = tokens[begin : begin + n_ctx]
        found += losses(context, window, scored - 1 - begin)
        scored = begin + len(window)
        begin += max(1, n_ctx // 2)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
