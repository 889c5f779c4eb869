"""llama-cpp-python's arguments of a call as ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from llama3jit.errors import InvalidArgumentError
from llama3jit.openai.grammar import format_of_grammar

if TYPE_CHECKING:
    from llama3jit.arguments import Sampling
    from llama3jit.openai.defaults import Defaults

# Of the same name and meaning here and there.
SAME = (
    "temperature",
    "top_p",
    "min_p",
    "typical_p",
    "presence_penalty",
    "frequency_penalty",
    "repeat_penalty",
    "mirostat_mode",
    "mirostat_tau",
    "mirostat_eta",
    "logit_bias",
    "stop",
)
RANDOM_SEEDS = (None, -1, 0xFFFFFFFF)
MOST_CHOICES = 128


def sampling_of(given: Mapping[str, Any], more: Mapping[str, Any], defaults: Defaults) -> Sampling:
    """Sampling arguments of a call's arguments by llama-cpp-python's names. `more` are those that
    only generate and chat have. Raises InvalidArgumentError for what cannot be done, by name."""
    if given["tfs_z"] != 1:
        raise InvalidArgumentError(
            f"tfs_z is {given['tfs_z']!r}: tail-free sampling is not built (llama.cpp lost it "
            f"too); use min_p or typical_p"
        )
    sampling: dict[str, Any] = {name: given[name] for name in SAME}
    sampling["max_tokens"] = None if _is_at_most_0(given["max_tokens"]) else given["max_tokens"]
    sampling["top_k"] = 0 if _is_at_most_0(given["top_k"]) else given["top_k"]
    sampling["seed"] = defaults.seed if given["seed"] in RANDOM_SEEDS else given["seed"]
    sampling["repeat_last_n"] = defaults.repeat_last_n
    for name, ours in (
        ("logits_processor", "logits_processors"),
        ("stopping_criteria", "stopping_criteria"),
    ):
        if given.get(name) is not None:
            sampling[ours] = given[name]
    for name, value in more.items():
        if name in sampling:
            raise InvalidArgumentError(f"{name} is given twice")
        sampling[name] = value
    if given["grammar"] is not None:
        if given.get("response_format") is not None or "response_format" in more:
            raise InvalidArgumentError(
                "grammar and response_format are both given: a text keeps to one; leave one out"
            )
        sampling["response_format"] = format_of_grammar(given["grammar"])
    elif given.get("response_format") is not None:
        sampling["response_format"] = given["response_format"]
    return sampling  # type: ignore[return-value]


def check_flag(name: str, value: object) -> bool:
    """True or False; None is False."""
    if value is not None and not isinstance(value, bool):
        raise InvalidArgumentError(f"{name} is {value!r:.60}: expected True or False")
    return bool(value)


def seeded(sampling: Sampling, index: int) -> Sampling:
    """The same for the choice of this number: with a seed of its own, if there is one."""
    seed = sampling.get("seed")
    if not isinstance(seed, int) or index == 0:
        return sampling
    return {**sampling, "seed": (seed + index) % 2**64}


def _is_at_most_0(value: Any) -> bool:
    """llama-cpp-python's way of saying that there is no limit."""
    return isinstance(value, int) and not isinstance(value, bool) and value <= 0
