"""Penalties for tokens that have come before: changes of a few logits of a row, in place."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from llama3jit.engine.params import SamplingParams

# The first token of a text that ends a repetition -> what may follow it there: nothing, ().
Breakers = Mapping[int, tuple[tuple[int, ...], ...]]

_LOG_FLOAT_MAX = 88.7228391  # powers of dry_base stay finite in f32, as in llama.cpp


def penalize(logits: NDArray[np.float32], history: Sequence[int], params: SamplingParams) -> None:
    """Repetition, frequency and presence penalties of the last repeat_last_n tokens of `history`,
    the prompt's among them (llama.cpp's "penalties").

    logit = logit / r if logit > 0 else logit * r;  then logit -= count * frequency + presence
    """
    ids, counts = np.unique(_last(history, params.repeat_last_n), return_counts=True)
    values = logits[ids].astype(np.float64)
    if params.repeat_penalty != 1:
        factor = float(params.repeat_penalty)
        values = np.where(values > 0, values / factor, values * factor)
    values -= counts * params.frequency_penalty + params.presence_penalty
    logits[ids] = _as_f32(values)


def dry(
    logits: NDArray[np.float32],
    history: Sequence[int],
    params: SamplingParams,
    breakers: Breakers,
) -> None:
    """The penalty for going on with a repetition ("don't repeat yourself", by p-e-w; llama.cpp's
    "dry").

    For each token that would make the end of `history` one longer repetition of what stands before
    it: logit -= multiplier * base ** (n - allowed_length), where n is how many tokens the longest
    such repetition has already, if that is allowed_length or more. A repetition does not reach over
    a breaker, and a breaker of one token is never penalised.
    """
    window = _last(history, params.dry_penalty_last_n)
    if len(window) <= params.dry_allowed_length:
        return
    longest = params.dry_allowed_length + _max_exponent(params.dry_base)
    limit = min(_since_breaker(window, breakers, longest), longest)
    if limit < params.dry_allowed_length:
        return
    tokens, lengths = _repeated(window, params.dry_allowed_length, limit)
    if breakers:
        bound = np.array([() not in breakers.get(int(token), ()) for token in tokens], bool)
        tokens, lengths = tokens[bound], lengths[bound]
    exponents = (lengths - params.dry_allowed_length).astype(np.float64)
    values = logits[tokens].astype(np.float64)
    values -= params.dry_multiplier * params.dry_base**exponents
    logits[tokens] = _as_f32(values)


def _as_f32(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """Huge values stay finite; those at -inf, which are forbidden, stay there."""
    most = float(np.finfo(np.float32).max)
    return np.where(values == -math.inf, values, np.clip(values, -most, most)).astype(np.float32)


def _last(history: Sequence[int], n: int) -> NDArray[np.int64]:
    return np.array(history if n < 0 else history[max(0, len(history) - n) :], np.int64)


def _max_exponent(base: float) -> int:
    return int(_LOG_FLOAT_MAX / math.log(base)) if base > 1.000001 else 1 << 20


def _since_breaker(window: NDArray[np.int64], breakers: Breakers, enough: int) -> int:
    """How many tokens at the end of `window` come after the last breaker; `enough` stops it."""
    if not breakers:
        return len(window)
    tail = max(len(rest) for rests in breakers.values() for rest in rests)
    tokens = window[-1 : -(enough + tail + 2) : -1].tolist()  # the newest first
    for i, token in enumerate(tokens):
        fitting = [
            len(rest)
            for rest in breakers.get(token, ())
            if len(rest) <= i and tuple(tokens[i - len(rest) : i][::-1]) == rest
        ]
        if fitting:
            return i - max(fitting)
    return len(window)


def _repeated(
    window: NDArray[np.int64], least: int, most: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Tokens that stood after an earlier occurrence of the window's last n >= least tokens, and for
    each the largest n, up to `most`."""
    newest = len(window) - 1
    ends = np.flatnonzero(window[:-1] == window[-1])  # where earlier occurrences end
    lengths = np.zeros(len(window) - 1, np.int64)
    n = 0
    while len(ends) and n < most:
        n += 1
        lengths[ends] = n
        ends = ends[ends >= n]
        ends = ends[window[ends - n] == window[newest - n]]
    found = np.flatnonzero(lengths >= least)
    tokens, where = np.unique(window[found + 1], return_inverse=True)
    best = np.zeros(len(tokens), np.int64)
    np.maximum.at(best, where, lengths[found])
    return tokens, best
