"""Options that several commands share. Each flag has a variable, LLAMA3JIT_ and its name."""

import os
from collections.abc import Mapping
from typing import Annotated, Any

import typer


def option(*names: str, help: str, **more: Any) -> Any:
    """A typer option whose variable is made from its first name: --top-k is LLAMA3JIT_TOP_K."""
    variable = "LLAMA3JIT_" + names[0].split("/")[0].strip("-").upper().replace("-", "_")
    return typer.Option(*names, help=help, envvar=variable, show_default=False, **more)


MODEL_HELP = "A name (see `llama3jit list`) or the path of a GGUF file."

Model = Annotated[str, typer.Argument(help=MODEL_HELP, show_default=False)]
OptionalModel = Annotated[
    str | None,
    typer.Argument(help=f"{MODEL_HELP} [default: the catalogue's]", envvar="LLAMA3JIT_MODEL"),
]

Device = Annotated[
    str,
    option(
        "--device", help="auto, cpu, cuda, cuda:N or reference. [default: auto]", metavar="NAME"
    ),
]
Threads = Annotated[
    int | None,
    option("--threads", "-t", min=1, help="Threads. [default: the cores that may be used]"),
]
ContextSize = Annotated[
    int | None,
    option(
        "--n-ctx", "-c", min=2, help="Tokens of the context. [default: the model's, if it fits]"
    ),
]
KVDtype = Annotated[
    str,
    option(
        "--kv-dtype", help="f16, f32, q8_0 or q4_0, of the KV cache. [default: f16]", metavar="TYPE"
    ),
]
Precision = Annotated[
    str,
    option(
        "--precision",
        help="fast (int8 activations) or exact (f32). [default: fast]",
        metavar="WORD",
    ),
]

MaxTokens = Annotated[
    int | None,
    option(
        "--max-tokens", "-n", min=1, help="Stop after N tokens. [default: the end of the context]"
    ),
]
Temperature = Annotated[
    float | None, option("--temperature", min=0, help="0 takes the likeliest token. [default: 0.8]")
]
TopK = Annotated[
    int | None,
    option("--top-k", min=0, help="Keep the K likeliest tokens; 0 is off. [default: 40]"),
]
TopP = Annotated[
    float | None,
    option(
        "--top-p",
        min=0,
        max=1,
        help="Keep the likeliest tokens that hold P; 1 is off. [default: 0.95]",
    ),
]
MinP = Annotated[
    float | None,
    option(
        "--min-p",
        min=0,
        max=1,
        help="Keep tokens from P of the likeliest's; 0 is off. [default: 0.05]",
    ),
]
Seed = Annotated[
    int | None,
    option(
        "--seed", min=0, max=2**64 - 1, help="The same seed gives the same text. [default: drawn]"
    ),
]


def whole_variable(
    context: typer.Context, parameter: typer.CallbackParam, value: list[str] | None
) -> list[str] | None:
    """The variable of a list option is one string, spaces and all; the parser would cut it."""
    source = context.get_parameter_source(parameter.name or "")
    if source is None or source.name != "ENVIRONMENT":
        return value
    return [os.environ[str(parameter.envvar)]]


Stop = Annotated[
    list[str] | None,
    option(
        "--stop",
        callback=whole_variable,
        help="End the text before this string; may be repeated.",
    ),
]
System = Annotated[str | None, option("--system", help="The system prompt of the conversation.")]
Verbose = Annotated[bool, option("--verbose", "-v", help="Report times and speeds on stderr.")]
Json = Annotated[bool, option("--json", help="Print one JSON object.")]


def given(**sampling: Any) -> Any:
    """The sampling arguments that were given; the library has the defaults of the others."""
    return {name: value for name, value in sampling.items() if value is not None}


def user_turn(text: str, system: str | None) -> list[Mapping[str, str]]:
    """One turn of a conversation."""
    turns = [{"role": "system", "content": system}] if system else []
    return [*turns, {"role": "user", "content": text}]
