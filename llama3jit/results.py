"""What generating and scoring give back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Stats:
    """Times in seconds, speeds in tokens per second; None where there was nothing to measure."""

    load_s: float  # from load() to the model being ready
    queue_s: float  # from the request to the start of its work
    ttft_s: float | None  # from the request to the first token
    total_s: float  # from the request to the last token
    # Prompt tokens that were computed over the time to the first token, unqueued.
    prefill_tokens_per_s: float | None
    decode_tokens_per_s: float | None  # the tokens after the first over their time
    cached_tokens: int = 0  # prompt tokens that were in the cache already


@dataclass(frozen=True, slots=True)
class Result:
    """A finished generation; `str(result)` is its text.

    finish_reason: "stop" at an end token or a stop string, "length" at max_tokens or at the end of
    the context.  tokens: the generated ids without the end token; after a stop string they include
    its tokens, the text does not.  seed: gives the same text again.  logprobs: of each token, the
    model's own, if asked for; top_logprobs: with each, (id, logprob) of the likeliest.
    dropped_turns, dropped_tokens: what on_overflow="shift" left out of the prompt.
    """

    text: str
    tokens: list[int]
    finish_reason: Literal["stop", "length"]
    prompt_tokens: int
    completion_tokens: int
    seed: int
    stats: Stats
    logprobs: list[float] | None = None
    top_logprobs: list[list[tuple[int, float]]] | None = None
    dropped_turns: int = 0
    dropped_tokens: int = 0

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class StreamPart:
    """A step of a stream. The texts of all parts join to the result's text; a part may have none,
    while characters are incomplete or a stop string may be about to appear. The last part has no
    token but the rest of the text and the `result`. `logprob` and `top_logprobs` are the token's,
    if asked for."""

    text: str
    token: int | None
    result: Result | None = None
    logprob: float | None = None
    top_logprobs: list[tuple[int, float]] | None = None


@dataclass(frozen=True, slots=True)
class Score:
    """How well a model predicts a text.

    tokens: how many were predicted (all but the first).  nll: the sum of their negative log
    likelihoods in nats.  perplexity: exp(nll / tokens).  logprobs: of each of these tokens, in
    nats, if asked for.
    """

    tokens: int
    nll: float
    perplexity: float
    logprobs: list[float] | None = None


def make_stats(
    *,
    load_s: float,
    submitted: float,
    admitted: float,
    token_times: list[float],
    prompt_tokens: int,
    cached_tokens: int = 0,
) -> Stats:
    """The figures of a request from its times, all of one clock and in seconds."""
    first = token_times[0] if token_times else None
    last = token_times[-1] if token_times else admitted
    n_read = prompt_tokens - cached_tokens
    return Stats(
        load_s=load_s,
        queue_s=admitted - submitted,
        ttft_s=None if first is None else first - submitted,
        total_s=last - submitted,
        prefill_tokens_per_s=None if first is None else _rate(n_read, first - admitted),
        decode_tokens_per_s=None if first is None else _rate(len(token_times) - 1, last - first),
        cached_tokens=cached_tokens,
    )


def _rate(count: int, seconds: float) -> float | None:
    return count / seconds if count > 0 and seconds > 0 else None
