"""What every device checks before it trusts a batch: kernels do not look at bounds."""

from __future__ import annotations

from llama3jit.devices import Limits
from llama3jit.errors import InvalidArgumentError
from llama3jit.model.batch import Batch


def check_batch(batch: Batch, limits: Limits) -> None:
    """Raise InvalidArgumentError for a batch that does not fit the limits."""
    for what, n, most in (
        ("tokens", len(batch.tokens), limits.max_tokens),
        ("sequences", len(batch.context_lens), limits.max_sequences),
        ("rows of logits", len(batch.logits_rows), limits.max_logits_rows),
        ("tokens of context", int(batch.context_lens.max(initial=0)), limits.n_ctx),
    ):
        if n > most:
            raise InvalidArgumentError(f"the batch has {n} {what}; this device takes {most}")
    for what, values, most in (
        ("token", batch.tokens, limits.vocab_size),
        ("position", batch.positions, limits.n_ctx),
        ("sequence", batch.seq_of, len(batch.context_lens)),
        ("KV block", batch.block_tables, limits.n_blocks),
        ("row of logits", batch.logits_rows, len(batch.tokens)),
    ):
        if values.size and (values.min() < 0 or values.max() >= most):
            worst = values.min() if values.min() < 0 else values.max()
            raise InvalidArgumentError(f"{what} {worst} is not in 0 to {most - 1}")
    width = batch.block_tables.shape[1]
    most = -(-limits.n_ctx // limits.block_tokens)
    if width > most:
        raise InvalidArgumentError(f"block tables have {width} blocks; this device takes {most}")
    held = width * limits.block_tokens
    context = max(batch.context_lens.max(initial=0), batch.positions.max(initial=-1) + 1)
    if context > held:
        raise InvalidArgumentError(
            f"block tables of {width} blocks hold {held} tokens, fewer than the {context} of the "
            f"context"
        )
