"""What guides the choice of tokens beside numbers: grammars, callables, texts as tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from llama3jit.errors import InvalidArgumentError

if TYPE_CHECKING:
    from llama3jit.arguments import Sampling
    from llama3jit.engine.chooser import Processor, Sampler, Stopping
    from llama3jit.engine.constraint import Constraint
    from llama3jit.engine.params import SamplingParams
    from llama3jit.engine.penalties import Breakers
    from llama3jit.text.tokenizer import Tokenizer


class Guides(TypedDict):
    """Fields of a Request."""

    constraint: Constraint | None
    processors: tuple[Processor, ...]
    sampler: Sampler | None
    stopping: tuple[Stopping, ...]
    dry_breakers: Breakers


def make_guides(
    sampling: Sampling, params: SamplingParams, stops: Sequence[str], tokenizer: Tokenizer
) -> Guides:
    """The guides that sampling arguments ask for. Raises InvalidArgumentError for what cannot be,
    UnsupportedError for a response format without the library that it needs."""
    from llama3jit.text.breakers import breaker_tokens

    check_callables(sampling)
    return {
        "constraint": _constraint(sampling, params, stops, tokenizer),
        "processors": functions(sampling, "logits_processors"),
        "sampler": sampling.get("sampler"),
        "stopping": functions(sampling, "stopping_criteria"),
        "dry_breakers": (
            breaker_tokens(tokenizer, params.dry_sequence_breakers) if params.is_dry else {}
        ),
    }


def check_callables(sampling: Sampling) -> None:
    """Raise InvalidArgumentError, by name, for what is no function where one is expected."""
    functions(sampling, "logits_processors")
    functions(sampling, "stopping_criteria")
    sampler = sampling.get("sampler")
    if sampler is not None and not callable(sampler):
        raise InvalidArgumentError(f"sampler is {sampler!r:.60}: expected a function")


def functions(sampling: Sampling, name: str) -> tuple[Callable[..., Any], ...]:
    """The functions given by a name: a sequence of them, or one."""
    given: Any = sampling.get(name)
    if given is None:
        return ()
    # A list comes first: llama-cpp-python's lists of processors can be called too.
    many = tuple(given) if isinstance(given, list | tuple) else (given,)
    for one in many:
        if not callable(one):
            raise InvalidArgumentError(f"{name} has {one!r:.60}: expected functions")
    return many


def _constraint(
    sampling: Sampling, params: SamplingParams, stops: Sequence[str], tokenizer: Tokenizer
) -> Constraint | None:
    response_format = sampling.get("response_format")
    if response_format is None:
        return None
    from llama3jit.text.constraint import make_constraint

    constraint = make_constraint(response_format, tokenizer, tokenizer.end_ids)
    if constraint is None:
        return None
    kind = response_format["type"]
    if stops and kind in ("json_object", "json_schema"):
        raise InvalidArgumentError(
            f"stop is {list(stops)!r:.60} beside response_format {kind}: the text ends where the "
            f"JSON does; leave stop out"
        )
    if params.min_tokens:
        raise InvalidArgumentError(
            f"min_tokens is {params.min_tokens} beside response_format: the text ends where its "
            f"grammar says; leave min_tokens out"
        )
    return constraint
