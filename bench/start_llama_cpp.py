"""llama.cpp's side of startup.py, through llama-cpp-python; see start_llama3jit.py."""

import json
import sys
import time

began = time.monotonic()


def first_token(model: str, threads: str, n_ctx: str, prompt: str) -> None:
    """Complete the prompt by one token."""
    from llama_cpp import Llama

    n = int(threads)
    llama = Llama(model_path=model, n_threads=n, n_threads_batch=n, n_ctx=int(n_ctx), verbose=False)
    loaded = time.monotonic()
    ids = llama.tokenize(prompt.encode())
    token = next(llama.generate(ids, temp=0.0))
    print(repr(llama.detokenize([token]).decode(errors="replace")), flush=True)
    print(json.dumps({"ids": ids, "began": began, "loaded": loaded, "compilers": []}))


def vocabulary(path: str, prompt: str) -> None:
    """Load the vocabulary of a file and encode the prompt."""
    from llama_cpp import Llama

    ids = Llama(model_path=path, vocab_only=True, verbose=False).tokenize(prompt.encode())
    print(ids, flush=True)
    print(json.dumps({"ids": ids, "began": began, "loaded": time.monotonic(), "compilers": []}))


if __name__ == "__main__":
    if sys.argv[1] == "--vocabulary":
        vocabulary(*sys.argv[2:])
    else:
        first_token(*sys.argv[1:])
