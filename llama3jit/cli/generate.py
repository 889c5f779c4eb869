"""`llama3jit generate`: one prompt, one text; or a prompt a line."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import closing
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llama3jit.cli import options
from llama3jit.cli.sampling import sampling_options
from llama3jit.cli.streams import one_line, stdin_lines
from llama3jit.errors import CancelledError, InvalidArgumentError, Llama3JitError

if TYPE_CHECKING:
    from llama3jit.api import Llama
    from llama3jit.results import Result

AT_ONCE = 8  # prompts of --lines; what `load` makes room for
MAX_BYTES = 1 << 28  # of a file that is read as a text; /dev/zero has no end


@sampling_options
def generate(
    model: options.OptionalModel = None,
    prompt: Annotated[str | None, options.option("--prompt", "-p", help="The prompt.")] = None,
    file: Annotated[
        Path | None, options.option("--file", "-f", help="A file that holds the prompt.")
    ] = None,
    lines: Annotated[
        bool, options.option("--lines", help="Each line of -f or stdin is a prompt of its own.")
    ] = False,
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

    With --lines the answers come in the order of the prompts, several being worked on at once, each
    followed by a line end or, with --json, as one object in a line. Empty lines are passed over. A
    prompt that fails gives an empty line, or an object with an error, and in the end exit status 1.
    """
    from llama3jit.cli.loading import describe, open_model

    text = "" if lines else read_prompt(prompt, file, raw)
    prompts = read_prompts(prompt, file) if lines else None
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
        if prompts is not None:
            failed = answer_lines(llm, prompts, system, sampling, raw=raw, json=json)
            raise typer.Exit(int(failed))
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


def read_prompt(prompt: str | None, file: Path | None, raw: bool = False) -> str:
    """The prompt from the one place where it is given. Only `raw` text may be empty."""
    if prompt is not None and file is not None:
        raise InvalidArgumentError("-p and -f are both given: expected one prompt")
    if prompt is not None:
        return prompt
    if file is not None and str(file) != "-":
        text, name = read_text(file), str(file)
    elif file is None and sys.stdin.isatty():
        raise InvalidArgumentError("no prompt: give -p TEXT or -f FILE, or pipe it in")
    else:
        text, name = decode(sys.stdin.buffer.read(), "stdin"), "stdin"
    if not raw and not text.strip():
        raise InvalidArgumentError(f"no prompt: {name} is empty; give -p TEXT or -f FILE")
    return text


def read_prompts(prompt: str | None, file: Path | None) -> Iterator[str]:
    """A prompt of each line that is not empty, from stdin as they come."""
    if prompt is not None:
        raise InvalidArgumentError("-p is one prompt; --lines takes prompts of -f FILE or stdin")
    if file is not None and str(file) != "-":
        return (line for line in read_text(file).splitlines() if line.strip())
    if file is None and sys.stdin.isatty():
        raise InvalidArgumentError("no prompts: give -f FILE, or pipe them in")
    lines = enumerate(stdin_lines(), 1)
    return (decode(line, f"line {number} of stdin") for number, line in lines if line.strip())


def answer_lines(
    llm: "Llama",
    prompts: Iterable[str],
    system: str | None,
    sampling: dict[str, Any],
    *,
    raw: bool,
    json: bool,
) -> bool:
    """Print the answers in the order of the prompts; whether one failed."""
    from llama3jit.background import in_order

    def answer(prompt: str) -> "Result | Llama3JitError":
        try:
            if raw:
                return llm.generate(prompt, **sampling)
            return llm.chat(options.user_turn(prompt, system), **sampling)
        except CancelledError:
            raise
        except Llama3JitError as error:
            return error

    failed = False
    with closing(in_order(prompts, answer, AT_ONCE)) as answers:
        for number, found in enumerate(answers, 1):
            if isinstance(found, Llama3JitError):
                failed = True
                print(f"llama3jit: prompt {number}: {one_line(str(found))}", file=sys.stderr)
                print(dumps({"error": str(found)}) if json else "", flush=True)
            elif json:
                print_json(found)
            else:
                print(found.text, flush=True)
    return failed


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
    print(json.dumps(fields, allow_nan=False), flush=True)
