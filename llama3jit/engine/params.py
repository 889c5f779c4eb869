"""How tokens are chosen, as numbers: checked when made, neutral values switch a filter off."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeGuard

import numpy as np

from llama3jit.checks import check_whole, is_whole, shown
from llama3jit.errors import InvalidArgumentError

DRY_SEQUENCE_BREAKERS = ("\n", ":", '"', "*")


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The sampler chain of one sequence; InvalidArgumentError names a parameter that cannot be.

    The order is llama.cpp's: logit_bias, penalties, dry, top_n_sigma, top_k, typical_p, top_p,
    min_p, xtc, temperature; `mirostat_mode=2` takes the place of all from top_n_sigma to xtc.
    docs/sampling.md has the formulas. `temperature=0` takes the largest logit, the lowest id on
    ties, whatever the filters. `seed=None` draws a random seed. `max_tokens=None` goes on until the
    context is full. `logit_bias`: {id: number added to its logit}; -inf forbids the token.
    """

    max_tokens: int | None = None
    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    seed: int | None = None
    logprobs: bool = False
    top_logprobs: int = 0
    min_tokens: int = 0
    typical_p: float = 1.0
    top_n_sigma: float = 0.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: Sequence[str] = DRY_SEQUENCE_BREAKERS
    mirostat_mode: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    logit_bias: Mapping[int, float] | None = None

    def __post_init__(self) -> None:
        for name, kind, low, high, note in LIMITS:
            value = getattr(self, name)
            if value is None and name in ("max_tokens", "seed"):
                continue
            check = check_whole if kind == "int" else _check_number
            check(name, value, low, high, f" ({note})")
        if not isinstance(self.logprobs, bool | np.bool_):
            raise InvalidArgumentError(
                f"logprobs is {shown(self.logprobs)}: expected True or False"
            )
        if self.mirostat_mode not in (0, 2):
            raise InvalidArgumentError(
                f"mirostat_mode is {self.mirostat_mode}: expected 0 (off) or 2 (mirostat 2.0)"
            )
        if self.repeat_penalty == 0:
            raise InvalidArgumentError("repeat_penalty is 0: expected more than 0 (1 is off)")
        if self.top_logprobs and not self.logprobs:
            raise InvalidArgumentError(
                f"top_logprobs is {self.top_logprobs}: expected logprobs=True beside it"
            )
        object.__setattr__(self, "dry_sequence_breakers", _texts(self.dry_sequence_breakers))
        object.__setattr__(self, "logit_bias", _biases(self.logit_bias))

    @property
    def penalizes(self) -> bool:
        """Whether repetition, presence or frequency penalties change any logit."""
        return self.repeat_last_n != 0 and (
            self.repeat_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0
        )

    @property
    def is_dry(self) -> bool:
        """Whether the dry penalty changes any logit."""
        return self.dry_multiplier > 0 and self.dry_penalty_last_n != 0

    @property
    def excludes_top(self) -> bool:
        """Whether xtc excludes anything; of two tokens no more than one is above a half."""
        return self.xtc_probability > 0 and self.xtc_threshold <= 0.5


# name, kind, least, most, and what the neutral value is.
LIMITS: tuple[tuple[str, Literal["int", "number"], float, float, str], ...] = (
    ("max_tokens", "int", 1, math.inf, "None goes on to the context's end"),
    ("temperature", "number", 0, math.inf, "0 is greedy"),
    ("top_k", "int", 0, math.inf, "0 switches it off"),
    ("top_p", "number", 0, 1, "1 switches it off"),
    ("min_p", "number", 0, 1, "0 switches it off"),
    ("seed", "int", 0, 2**64 - 1, "None draws a random one"),
    ("top_logprobs", "int", 0, math.inf, "0 reports none"),
    ("min_tokens", "int", 0, math.inf, "0 may end at once"),
    ("typical_p", "number", 0, 1, "1 switches it off"),
    ("top_n_sigma", "number", 0, math.inf, "0 switches it off"),
    ("xtc_probability", "number", 0, 1, "0 switches it off"),
    ("xtc_threshold", "number", 0, 1, "more than 0.5 switches it off"),
    ("dynatemp_range", "number", 0, math.inf, "0 switches it off"),
    ("dynatemp_exponent", "number", 0, math.inf, "1 is in proportion to the entropy"),
    ("repeat_penalty", "number", 0, math.inf, "1 switches it off"),
    ("repeat_last_n", "int", -1, math.inf, "0 switches it off, -1 takes the whole context"),
    ("presence_penalty", "number", -math.inf, math.inf, "0 switches it off"),
    ("frequency_penalty", "number", -math.inf, math.inf, "0 switches it off"),
    ("dry_multiplier", "number", 0, math.inf, "0 switches it off"),
    ("dry_base", "number", 1, math.inf, "1.75 is usual"),
    ("dry_allowed_length", "int", 1, math.inf, "2 is usual"),
    ("dry_penalty_last_n", "int", -1, math.inf, "0 switches it off, -1 takes the whole context"),
    ("mirostat_mode", "int", 0, 2, "0 switches it off"),
    ("mirostat_tau", "number", 0, math.inf, "bits of surprise; 5 is usual"),
    ("mirostat_eta", "number", 0, 1, "0.1 is usual"),
)


def check_bias_ids(params: SamplingParams, vocab_size: int) -> None:
    """Raise InvalidArgumentError for a biased token that the vocabulary lacks."""
    for token in params.logit_bias or ():
        if not 0 <= token < vocab_size:
            raise InvalidArgumentError(
                f"logit_bias has token {token}: expected an id from 0 to {vocab_size - 1}"
            )


def _is_number(value: object) -> TypeGuard[float | np.integer | np.floating]:
    return is_whole(value) or isinstance(value, float | np.floating)


def _check_number(name: str, value: object, low: float, high: float, note: str) -> None:
    if not _is_number(value):
        raise InvalidArgumentError(f"{name} is {shown(value)}: expected a number{note}")
    if isinstance(value, np.floating):  # float16 cannot be compared with what it cannot hold
        value = float(value)
    most = sys.float_info.max
    if not max(low, -most) <= value <= min(high, most):
        bounds = f"{low:g} to {high:g}"
        if high == math.inf:
            bounds = "a finite number" + ("" if low == -math.inf else f", {low:g} or more")
        raise InvalidArgumentError(f"{name} is {shown(value)}: expected {bounds}{note}")


def _texts(breakers: object) -> tuple[str, ...]:
    texts = (
        tuple(breakers)
        if isinstance(breakers, Sequence) and not isinstance(breakers, str)
        else (breakers,)
    )
    for text in texts:
        if not isinstance(text, str) or not text:
            raise InvalidArgumentError(
                f"dry_sequence_breakers has {text!r:.60}: expected strings that are not empty"
            )
    return texts


def _biases(given: object) -> dict[int, float] | None:
    """By id; ids may be text, which JSON makes of them."""
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise InvalidArgumentError(f"logit_bias is {given!r:.60}: expected a dict, id to number")
    biases = {}
    for token, value in given.items():
        text = token if isinstance(token, str) else ""
        if is_whole(token):
            text = shown(int(token))
        if not (text.isascii() and text.isdecimal() and len(text) < 20):
            raise InvalidArgumentError(
                f"logit_bias has the key {shown(token)}: expected a token id"
            )
        most = sys.float_info.max
        if isinstance(value, np.floating):  # float16 cannot be compared with what it cannot hold
            value = float(value)
        if not _is_number(value) or not (value == -math.inf or -most <= value <= most):
            raise InvalidArgumentError(
                f"logit_bias of token {token} is {shown(value)}: expected a finite number, or "
                f"-inf to forbid the token"
            )
        biases[int(text)] = float(value)
    return biases
