"""How well a model predicts given tokens, window by window."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from llama3jit.errors import InvalidArgumentError, NumericsError
from llama3jit.results import Score

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from llama3jit.engine.engine import Engine
    from llama3jit.engine.sequence import Visit

# Runs a window of tokens and shows the logits from a position on.
RunWindow = Callable[[list[int], "Visit", int], None]


def show_logits(engine: Engine, tokens: list[int], show: Visit, visit_from: int = 0) -> None:
    """Show the logits of tokens from a position on; nothing is generated."""
    from llama3jit.engine.sequence import Request

    handle = engine.submit(Request(tokens, visit=show, visit_from=visit_from))
    try:
        for _ in handle:
            pass
    finally:
        handle.cancel()


def all_logits(engine: Engine, tokens: list[int], start: int = 0) -> NDArray[np.float32]:
    """Logits [T - start, vocab_size] f32 of the tokens from `start` on. What cannot be done is
    refused before memory is taken."""
    import numpy as np

    from llama3jit.engine.sequence import Request

    engine.check(Request(tokens, visit=lambda first, rows: None))
    if not 0 <= start < len(tokens):
        raise InvalidArgumentError(f"first is {start}; expected 0 to {len(tokens) - 1}")
    out = np.empty((len(tokens) - start, engine.limits.vocab_size), np.float32)

    def keep(first: int, rows: NDArray[np.float32]) -> None:
        out[first - start : first - start + len(rows)] = rows

    show_logits(engine, tokens, keep, start)
    return out


def score_tokens(tokens: list[int], n_ctx: int, run: RunWindow, per_token: bool = False) -> Score:
    """Score every token but the first, each once, in windows of n_ctx that overlap by half."""
    if len(tokens) < 2:
        raise InvalidArgumentError(
            f"the text has {len(tokens)} token(s): scoring needs two or more, as each is predicted "
            f"from those before it"
        )
    losses: list[float] = []
    begin, scored = 0, 1
    while scored < len(tokens):
        window = tokens[begin : begin + n_ctx]
        # Row i predicts token i + 1; the last row predicts one that the window does not hold.
        run(window, _losses_of(window, begin, losses), scored - 1 - begin)
        scored = begin + len(window)
        begin += max(1, n_ctx // 2)
    nll = math.fsum(losses)
    mean = nll / len(losses)
    perplexity = math.exp(mean) if mean < 700 else math.inf
    return Score(len(losses), nll, perplexity, [-loss for loss in losses] if per_token else None)


def _losses_of(window: list[int], begin: int, losses: list[float]) -> Visit:
    from llama3jit.engine.sampler import logprob

    def visit(first: int, rows: NDArray[np.float32]) -> None:
        following = window[first + 1 : first + 1 + len(rows)]
        for row, token in zip(rows, following, strict=False):
            losses.append(-logprob(row, token))
            if not math.isfinite(losses[-1]):
                raise NumericsError(
                    f"the logits after token {begin + len(losses)} of the text are not finite; the "
                    f"weights or a kernel are broken: compare with precision='exact'"
                )

    return visit
