"""Sums: the residual, and a bias."""

from __future__ import annotations

from llama3jit.ops.op import op


@op
def add(out: f32[rows, n], x: f32[rows, n], items: rows):
    """out += x"""
    for r in items:
        for i in range(x.shape[1]):
            out[r, i] += x[r, i]


@add.reference
def add_reference(out, x):
    out += x


@op
def add_bias(out: f32[rows, n], bias: f32[n], items: rows):
    """out[r] += bias"""
    for r in items:
        for i in range(bias.shape[0]):
            out[r, i] += bias[i]


@add_bias.reference
def add_bias_reference(out, bias):
    out += bias
