"""Options of the samplers beyond the usual few, and of texts that keep to a grammar."""

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

from llama3jit.cli import options
from llama3jit.errors import InvalidArgumentError

REPETITION, FORMAT, MORE = "Against repetition", "Form of the text", "More samplers"

# Flag, type, least, most, group, help. The library checks values again, and has the defaults.
ROWS: tuple[tuple[str, Any, float | None, float | None, str, str], ...] = (
    ("--repeat-penalty", float, 0, None, REPETITION,
     "Divide the logits of tokens that came before; 1 is off. [default: 1]"),
    ("--repeat-last-n", int, -1, None, REPETITION,
     "Tokens that the penalties look back; -1 is all. [default: 64]"),
    ("--presence-penalty", float, None, None, REPETITION,
     "Taken from the logits of tokens that came before. [default: 0]"),
    ("--frequency-penalty", float, None, None, REPETITION,
     "The same for each time that they came. [default: 0]"),
    ("--dry-multiplier", float, 0, None, REPETITION,
     "Strength of the dry penalty for going on with a repetition; 0 is off. [default: 0]"),
    ("--dry-base", float, 1, None, REPETITION,
     "It grows by this with each repeated token. [default: 1.75]"),
    ("--dry-allowed-length", int, 1, None, REPETITION,
     "Repeated tokens from which on it is due. [default: 2]"),
    ("--dry-penalty-last-n", int, -1, None, REPETITION,
     "Tokens that it looks back; -1 is all. [default: -1]"),
    ("--dry-sequence-breaker", list[str], None, None, REPETITION,
     "A text that no repetition reaches over; may be repeated. [default: line ends, : \" *]"),
    ("--typical-p", float, 0, 1, MORE,
     "Keep the most typical tokens that hold P; 1 is off. [default: 1]"),
    ("--top-n-sigma", float, 0, None, MORE,
     "Keep logits within N standard deviations of the best; 0 is off. [default: 0]"),
    ("--xtc-probability", float, 0, 1, MORE,
     "How often the top choices are excluded; 0 is off. [default: 0]"),
    ("--xtc-threshold", float, 0, 1, MORE,
     "From which probability on a token is a top choice. [default: 0.1]"),
    ("--dynatemp-range", float, 0, None, MORE,
     "Vary the temperature up and down by this with the entropy; 0 is off. [default: 0]"),
    ("--dynatemp-exponent", float, 0, None, MORE,
     "The power of the entropy in it. [default: 1]"),
    ("--mirostat-mode", int, 0, 2, MORE,
     "2: mirostat 2.0 in place of the filters; 0 is off. [default: 0]"),
    ("--mirostat-tau", float, 0, None, MORE, "The surprise it aims at, in bits. [default: 5]"),
    ("--mirostat-eta", float, 0, 1, MORE, "How fast it learns. [default: 0.1]"),
    ("--logit-bias", list[str], None, None, MORE,
     "ID=NUMBER, added to the logit of a token, or ID=-inf to forbid it; may be repeated."),
    ("--min-tokens", int, 0, None, MORE, "No end before N tokens. [default: 0]"),
    ("--json-schema", str, None, None, FORMAT,
     "Reply in JSON by this schema: a file, or the schema itself; {} is any object."),
    ("--regex", str, None, None, FORMAT, "Reply with a text that this expression matches whole."),
    ("--grammar", Path, None, None, FORMAT, "Reply by a grammar: a file in llguidance's Lark."),
)  # fmt: skip

# What other options are about, by the names of their parameters; the rest are just options.
GROUPS = {
    **dict.fromkeys(
        ("max_tokens", "temperature", "top_k", "top_p", "min_p", "seed", "stop"), "Sampling"
    ),
    **{flag[2:].replace("-", "_"): group for flag, _, _, _, group, _ in ROWS},
    **dict.fromkeys(("device", "n_ctx", "threads", "kv_dtype", "precision"), "Device and memory"),
}


def sampling_options(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options of ROWS; it gets those that were used as the dict `more`, named
    and typed as the arguments of `Llama.generate`."""

    @wraps(command)
    def run(**arguments: Any) -> None:
        given = {name: arguments.pop(name) for name in _PARAMETERS}
        command(**arguments, more=_as_arguments(options.given(**given)))

    signature = inspect.signature(command)
    own = [p for name, p in signature.parameters.items() if name != "more"]
    place = next((i for i, p in enumerate(own) if p.name == "stop"), len(own) - 1) + 1
    parameters = [*own[:place], *_PARAMETERS.values(), *own[place:]]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


def _parameter(row: tuple[str, Any, float | None, float | None, str, str]) -> inspect.Parameter:
    flag, kind, least, most, _, text = row
    more: dict[str, Any] = {name: x for name, x in (("min", least), ("max", most)) if x is not None}
    if kind == list[str]:
        more["callback"] = options.whole_variable
    return inspect.Parameter(
        flag[2:].replace("-", "_"),
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        default=None,
        annotation=Annotated[kind | None, options.option(flag, help=text, **more)],
    )


_PARAMETERS = {parameter.name: parameter for parameter in map(_parameter, ROWS)}


def _as_arguments(given: dict[str, Any]) -> dict[str, Any]:
    breakers = given.pop("dry_sequence_breaker", None)
    if breakers:
        given["dry_sequence_breakers"] = breakers
    biases = given.pop("logit_bias", None)
    if biases:
        given["logit_bias"] = dict(map(_bias, biases))
    formats = {
        name: given.pop(name) for name in ("json_schema", "regex", "grammar") if name in given
    }
    if len(formats) > 1:
        names = " and ".join(f"--{name.replace('_', '-')}" for name in formats)
        raise InvalidArgumentError(f"{names} are both given: expected one form of the text")
    for name, value in formats.items():
        given["response_format"] = _response_format(name, value)
    return given


def _bias(text: str) -> tuple[int, float]:
    token, _, number = text.partition("=")
    try:
        return int(token), float(number)
    except ValueError:
        raise InvalidArgumentError(
            f"--logit-bias is {text!r:.60}: expected ID=NUMBER, as in 42=-1.5"
        ) from None


def _response_format(name: str, value: Any) -> dict[str, Any]:
    from llama3jit.cli.generate import read_text

    if name == "regex":
        return {"type": "regex", "regex": value}
    if name == "grammar":
        return {"type": "grammar", "grammar": read_text(value)}
    schema = value if value.lstrip().startswith("{") else read_text(Path(value))
    if schema.strip() == "{}":
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"schema": schema}}
