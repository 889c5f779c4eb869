"""`llama3jit tokenize`: the tokens of a text."""

import sys
from typing import Annotated

import typer

from llama3jit.cli import options


def tokenize(
    model: options.Model,
    text: Annotated[str, typer.Argument(help="The text; - is stdin.", show_default=False)],
    json: options.Json = False,
    special: Annotated[
        bool, options.option("--special", help="Special tokens in the text become tokens.")
    ] = False,
    bos: Annotated[
        bool | None,
        options.option("--bos/--no-bos", help="Begin with BOS. [default: as the model file says]"),
    ] = None,
) -> None:
    """Print a line for each token: its id, and its text as a JSON string. No weights are read."""
    from json import dumps

    from llama3jit.files.gguf import open_gguf
    from llama3jit.files.store import resolve
    from llama3jit.text.tokenizer import load_tokenizer

    if text == "-":
        text = sys.stdin.buffer.read().decode("utf-8", "surrogateescape")
    with open_gguf(resolve(model)) as file:
        tokenizer = load_tokenizer(file.metadata)
    ids = tokenizer.encode(text, add_bos=bos, parse_special=special)
    pieces = [tokenizer.piece(index) for index in ids]
    # Escapes for a terminal or a pipe that does not take every character.
    escaped = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
    if json:
        print(dumps({"ids": ids, "pieces": pieces}, ensure_ascii=escaped))
    else:
        for index, piece in zip(ids, pieces, strict=True):
            print(f"{index:>7}  {dumps(piece, ensure_ascii=escaped)}")
