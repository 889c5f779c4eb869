"""`llama3jit score`: how well a model predicts a text."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from llama3jit.cli import options


def score(
    model: options.Model,
    file: Annotated[Path, typer.Argument(help="A UTF-8 text file; - is stdin.")],
    json: options.Json = False,
    device: options.Device = "auto",
    n_ctx: options.ContextSize = None,
    threads: options.Threads = None,
    kv_dtype: options.KVDtype = "f16",
    precision: options.Precision = "fast",
) -> None:
    """Print the perplexity of a text.

    Beside it the number of tokens scored and their negative log likelihood in nats.

    A text longer than the context is read in windows of n-ctx tokens that overlap by half; each
    token is scored once, in the first window that holds it.
    """
    from llama3jit.cli.generate import decode, print_json, read_text
    from llama3jit.cli.loading import open_model

    text = decode(sys.stdin.buffer.read(), "stdin") if str(file) == "-" else read_text(file)
    with open_model(model, device, n_ctx, threads, kv_dtype, precision) as llm:
        result = llm.score(text)
    if json:
        print_json(result)
    else:
        print(f"tokens {result.tokens}  nll {result.nll:.3f}  perplexity {result.perplexity:.4f}")
