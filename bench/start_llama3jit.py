"""Our side of startup.py: a process that loads a model, or a vocabulary alone, and says when.

    start_llama3jit.py MODEL THREADS N_CTX PROMPT
    start_llama3jit.py --vocabulary FILE PROMPT

The first line on stdout is the first token's text, or the prompt's ids; the second is JSON: the
ids, and seconds on the system's monotonic clock.
"""

import json
import sys
import time

began = time.monotonic()


def first_token(model: str, threads: str, n_ctx: str, prompt: str) -> None:
    """Complete the prompt by one token."""
    import llama3jit

    llama = llama3jit.load(model, device="cpu", threads=int(threads), n_ctx=int(n_ctx))
    loaded = time.monotonic()
    ids = llama.tokenize(prompt)
    text = next(part.text for part in llama.stream(ids, max_tokens=1, temperature=0.0))
    print(repr(text), flush=True)
    compilers = sorted({"numba", "llvmlite"} & set(sys.modules))
    print(json.dumps({"ids": ids, "began": began, "loaded": loaded, "compilers": compilers}))


def vocabulary(path: str, prompt: str) -> None:
    """Build the tokenizer of a file and encode the prompt."""
    from llama3jit.files.gguf import open_gguf
    from llama3jit.text.tokenizer import load_tokenizer

    with open_gguf(path) as gguf:
        ids = list(load_tokenizer(gguf.metadata).encode(prompt))
    print(ids, flush=True)
    print(json.dumps({"ids": ids, "began": began, "loaded": time.monotonic(), "compilers": []}))


if __name__ == "__main__":
    if sys.argv[1] == "--vocabulary":
        vocabulary(*sys.argv[2:])
    else:
        first_token(*sys.argv[1:])
