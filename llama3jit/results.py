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
    prefill_tokens_per_s: float | None  # prompt tokens over the time to the first token, unqueued
    decode_tokens_per_s: float | None  # the tokens after the first over their time


@dataclass(frozen=True, slots=True)
class Result:
    """A finished generation; `str(result)` is its text.

    finish_reason: "stop" at an end token or a stop string, "length" at max_tokens or at the end of
    the context.  tokens: the generated ids without the end token; after a stop string they include
    its tokens, the text does not.  seed: gives the same text again.  logprobs: of each token, the
    model's own, if asked for.
    """

    text: str
    tokens: list[int]
    finish_reason: Literal["stop", "length"]
    prompt_tokens: int
    completion_tokens: int
    seed: int
    stats: Stats
    logprobs: list[float] | None = None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class StreamPart:
    """A step of a stream. The texts of all parts join to the result's text; a part may have none,
    while characters are incomplete or a stop string may be about to appear. The last part has no
    token but the rest of the text and the `result`."""

    text: str
    token: int | None
    result: Result | None = None


@dataclass(frozen=True, slots=True)
class Score:
    """How well a model predicts a text.

    tokens: how many were predicted (all but the first).  nll: the sum of their negative log
    likelihoods in nats.  perplexity: exp(nll / tokens).
    """

    tokens: int
    nll: float
    perplexity: float
