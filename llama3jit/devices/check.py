"""What every device checks before it trusts a batch: kernels do not look at bounds."""

from __future__ import annotations

from llama3jit.devices import Limits
from llama3jit.errors import InvalidArgumentError
from llama3jit.model.batch import Batch


def check_batch(batch: Batch, limits: Limits) -> None:
    """Raise InvalidArgumentError for a batch that does not fit the limits.

    By way of lists: a step of one token pays for each piece of code that its weights have pushed
    out of the caches, and NumPy's reductions are many.
    """
    context_lens = batch.context_lens.tolist()
    positions = batch.positions.tolist()
    for what, n, most in (
        ("tokens", len(positions), limits.max_tokens),
        ("sequences", len(context_lens), limits.max_sequences),
        ("rows of logits", len(batch.logits_rows), limits.max_logits_rows),
        ("tokens of context", max(context_lens, default=0), limits.n_ctx),
    ):
        if n > most:
            raise InvalidArgumentError(f"the batch has {n} {what}; this device takes {most}")
    for what, values, most in (
        ("token", batch.tokens.tolist(), limits.vocab_size),
        ("position", positions, limits.n_ctx),
        ("sequence", batch.seq_of.tolist(), len(context_lens)),
        ("KV block", batch.block_tables.ravel().tolist(), limits.n_blocks),
        ("row of logits", batch.logits_rows.tolist(), len(positions)),
    ):
        lowest, highest = min(values, default=0), max(values, default=0)
        if lowest < 0 or (values and highest >= most):
            worst = lowest if lowest < 0 else highest
            raise InvalidArgumentError(f"{what} {worst} is not in 0 to {most - 1}")
    width = batch.block_tables.shape[1]
    most = -(-limits.n_ctx // limits.block_tokens)
    if width > most:
        raise InvalidArgumentError(f"block tables have {width} blocks; this device takes {most}")
    held = width * limits.block_tokens
    context = max(max(context_lens, default=0), max(positions, default=-1) + 1)
    if context > held:
        raise InvalidArgumentError(
            f"block tables of {width} blocks hold {held} tokens, fewer than the {context} of the "
            f"context"
        )
