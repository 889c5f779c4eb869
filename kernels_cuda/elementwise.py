"""Ops that make each value by itself, a thread to a value or to a pair."""

from __future__ import annotations

from math import prod

from kernels_cuda import Launch

THREADS = 256
# How many threads an op needs, as the dims whose product it is.
THREADS_OF = {
    "add": ("rows", "n"),
    "add_bias": ("rows", "n"),
    "embed": ("T", "n_embd"),
    "rope": ("T", "heads", "half"),
    "rope_append": ("T", "all_heads", "pairs"),
    "rope_angles": ("T", "half"),
    "select_rows": ("R", "n"),
    "swiglu": ("rows", "n"),
}


def launch(op, variant, dims):
    dims = {**dims, "pairs": dims.get("head_dim", 0) // 2}
    threads = prod(dims[name] for name in THREADS_OF[op])
    return Launch((-(-threads // THREADS), 1, 1), (THREADS, 1, 1))


def kernel(op, variant):
    from kernels_cuda import elements

    if op == "embed":
        return elements.make_embed(variant)
    return getattr(elements, op)
