"""Token embedding: rows of a weight in any block format."""

from __future__ import annotations

from llama3jit.ops.dequantise import FORMATS, rows
from llama3jit.ops.op import op


@op(variants=FORMATS)
def embed(
    out: f32[T, n_embd],
    weight: u8[n_vocab, row_bytes],
    tokens: i32[T],
    dequantise: function,
    items: T,
):
    """out[t] = weight[tokens[t]]"""
    for t in items:
        for k in range(out.shape[1]):
            out[t, k] = dequantise(weight, tokens[t], k)


@embed.reference
def embed_reference(out, weight, tokens, variant):
    out[:] = rows(weight[tokens], variant)
