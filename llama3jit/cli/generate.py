"""`llama3jit generate`: one prompt, one text."""

import sys
from pathlib import Path
from typing import Annotated, Any

from llama3jit.cli import options
from llama3jit.cli.sampling import sampling_options
from llama3jit.errors import InvalidArgumentError

MAX_BYTES = 1 << 28  # of a file that is read as a text; /dev/zero has no end


@sampling_options
def generate(
    model: options.OptionalModel = None,
    prompt: Annotated[str | None, options.option("--prompt", "-p", help="The prompt.")] = None,
    file: Annotated[
        Path | None, options.option("--file", "-f", help="A file that holds the prompt.")
    ] = None,
    raw: Annotated[
        bool, options.option("--raw", help="Continue the text itself, without a chat template.")
    ] = False,
    system: options.System = None,
    max_tokens: options.MaxTokens = None,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    min_p: options.MinP = None,
    seed: options.Seed = None,
    stop: options.Stop = None,
    json: options.Json = False,
    verbose: options.Verbose = False,
    device: options.Device = "auto",
    n_ctx: options.ContextSize = None,
    threads: options.Threads = None,
    kv_dtype: options.KVDtype = "f16",
    precision: options.Precision = "fast",
    *,
    more: dict[str, Any],
) -> None:
    """Answer a prompt: -p, -f or stdin.

    The text goes to stdout as it comes, or with --json as one object at the end.
    """
    from llama3jit.cli.loading import describe, open_model

    text = read_prompt(prompt, file)
    sampling = options.given(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        stop=stop,
        **more,
    )
    with open_model(model, device, n_ctx, threads, kv_dtype, precision) as llm:
        if raw:
            parts = llm.stream(text, **sampling)
        else:
            parts = llm.stream_chat(options.user_turn(text, system), **sampling)
        for part in parts:
            if not json:
                print(part.text, end="", flush=True)
            result = part.result
    assert result is not None
    if json:
        print_json(result)
    elif not result.text.endswith("\n"):
        print()
    if verbose:
        print(
            describe(result.stats, result.prompt_tokens, result.completion_tokens), file=sys.stderr
        )


def read_prompt(prompt: str | None, file: Path | None) -> str:
    """The prompt from the one place where it is given."""
    if prompt is not None and file is not None:
        raise InvalidArgumentError("-p and -f are both given: expected one prompt")
    if prompt is not None:
        return prompt
    if file is not None and str(file) != "-":
        return read_text(file)
    if file is None and sys.stdin.isatty():
        raise InvalidArgumentError("no prompt: give -p TEXT or -f FILE, or pipe it in")
    return decode(sys.stdin.buffer.read(), "stdin")


def read_text(file: Path) -> str:
    """The text of a UTF-8 file."""
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_BYTES + 1)
    except OSError as error:
        raise InvalidArgumentError(f"{file} cannot be read: {error.strerror}") from error
    if len(data) > MAX_BYTES:
        raise InvalidArgumentError(f"{file} is larger than the {MAX_BYTES >> 20} MiB that are read")
    return decode(data, str(file))


def decode(data: bytes, name: str) -> str:
    """UTF-8 to text; InvalidArgumentError says where it is not."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(
            f"{name} is not UTF-8: byte {error.start} is {data[error.start]:#04x}; convert it first"
        ) from error


def print_json(result: object) -> None:
    """A result as one line of JSON, fields in their order; those that are None are left out."""
    import dataclasses
    import json
    import math

    fields = {
        # JSON has no infinity: the perplexity of what is all but impossible becomes null.
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in dataclasses.asdict(result).items()  # type: ignore[call-overload]
        if value is not None
    }
    print(json.dumps(fields, allow_nan=False))
