"""The rows whose logits are wanted."""

from __future__ import annotations

from llama3jit.ops.op import op


@op
def select_rows(out: f32[R, n], x: f32[T, n], logits_rows: i32[R], items: R):
    """out[r] = x[logits_rows[r]]"""
    for r in items:
        for i in range(x.shape[1]):
            out[r, i] = x[logits_rows[r], i]


@select_rows.reference
def select_rows_reference(out, x, logits_rows):
    out[:] = x[logits_rows]
