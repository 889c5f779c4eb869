"""Tuned GPU kernels one by one, and a decode step of a Llama-3-8B shape made of them, beside a read
sweep of the memory in the same run.

    PYTHONPATH=. python bench/cuda_kernels.py CUBINS [--parts sweep,products,rows,steps,prefill]

CUBINS is a folder that `llama3jit compile --target sm_90a --out CUBINS` made. Weights are
random bytes; each product goes over as many of them as are far larger than the cache. Times are
medians of graphs of many launches, with programmatic dependent launch, as a model's step has it.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
from cuda_launch import Gpu, dims_of, signature

import kernels_cuda
from kernels_cuda.layouts import packed_shape

EMBD, FF, HEADS, KV_HEADS, HEAD_DIM, VOCAB, LAYERS = 4096, 14336, 32, 8, 128, 128256, 32
QKV = (HEADS + 2 * KV_HEADS) * HEAD_DIM
SHAPES = ((QKV, EMBD), (EMBD, EMBD), (1024, EMBD), (FF, EMBD), (2 * FF, EMBD), (EMBD, FF))
HEAD = (VOCAB, EMBD)
MOST_INT8, MOST_FLOATS = 64, 8  # tokens that the products for few take
PERIOD = 3_000_000_000  # bytes of weights that launches go round

Shapes = Mapping[str, tuple[int, ...]]


class Bench:
    """A GPU, a pool of random bytes, and buffers by name."""

    def __init__(self, cubins: Path, pool: int) -> None:
        self.gpu = Gpu(cubins)
        self.pool, self.size = self.gpu.alloc(pool), pool
        chunk = np.random.default_rng(0).integers(0, 255, 1 << 26, np.uint8)
        for at in range(0, pool - chunk.nbytes, chunk.nbytes):
            self.gpu.cuda.cuMemcpyHtoD(self.pool + at, chunk.ctypes.data, chunk.nbytes)
        self.buffers: dict[str, int] = {}
        self.overlap = True

    def buffer(self, name: str, size: int) -> int:
        key = f"{name} {size}"
        if key not in self.buffers:
            self.buffers[key] = self.gpu.put(np.full(size, 0x3C, np.uint8))
        return self.buffers[key]

    def row(self, op: str, variant: str, shapes: Shapes, **given: int | float) -> None:
        """Launch an op on buffers of these shapes, except what is given."""
        dims = dims_of(op, shapes)
        values: list[int | float] = []
        for name, dtype, symbols in signature(op):
            if name in given:
                values.append(given[name])
            else:
                size = {"f64": 8, "i64": 8, "u16": 2, "u8": 1, "i8": 1}.get(dtype, 4)
                values.append(self.buffer(name, int(np.prod(shapes[name])) * size))
                assert symbols
        tuned = kernels_cuda.variant_of(op, variant, dims)
        assert tuned is not None, (op, variant, dims)
        self.gpu.launch(op, tuned, values, dims, overlap=self.overlap)


def int8_shapes(t: int, k: int) -> dict[str, tuple[int, ...]]:
    return {"xq": (t, k), "xs": (t, k // 32), "xsum": (t, k // 16), "xtotal": (t, k // 32)}


def product(bench: Bench, variant: str, t: int, n: int, k: int, weight: int) -> None:
    shape = packed_shape(variant, n, k)
    if t > (MOST_FLOATS if variant in kernels_cuda.FLOATS else MOST_INT8):
        size = -(-t // 128) * -(-k // 256) * 128 * 256
        halves = "bf16" if variant == "bf16" else "f16"
        bench.row("halve", halves, {"xh": (size,), "x": (t, k)})
        shapes = {"out": (t, n), "weight": shape, "xh": (size,)}
        bench.row("matmul_halves", variant, shapes, weight=weight, K=k)
    elif variant in kernels_cuda.FLOATS:
        bench.row("matmul", variant, {"out": (t, n), "weight": shape, "x": (t, k)}, weight=weight)
    else:
        shapes = {"out": (t, n), "weight": shape, **int8_shapes(t, k)}
        bench.row("matmul_int8", variant, shapes, weight=weight)


def sweep(bench: Bench) -> float:
    """Bytes a second of a plain read."""
    size = min(bench.size, 1 << 32)

    def fill() -> None:
        bench.row("read_sweep", "", {"out": (256,), "data": (size,)}, data=bench.pool)

    return size / bench.gpu.seconds(fill)


def repeated(bench: Bench, variant: str, t: int, n: int, k: int, count: int) -> None:
    """Products with so many weights, one after another."""
    size = int(np.prod(packed_shape(variant, n, k)))
    for i in range(count):
        product(bench, variant, t, n, k, bench.pool + i * size)


def products(bench: Bench, variants: list[str], tokens: list[int]) -> None:
    print("| product, GB/s of weights |", " | ".join(f"{n} x {k}" for n, k in (*SHAPES, HEAD)), "|")
    for variant in variants:
        for t in tokens:
            cells = []
            for n, k in (*SHAPES, HEAD):
                size = int(np.prod(packed_shape(variant, n, k)))
                count = max(2, min(40, min(PERIOD, bench.size) // size))
                took = bench.gpu.seconds(partial(repeated, bench, variant, t, n, k, count))
                cells.append(f"{size * count / took / 1e9:.0f}")
            print(f"| {variant} T={t} |", " | ".join(cells), "|", flush=True)


def prefill(bench: Bench, variants: list[str]) -> None:
    """TFLOP/s of products with many tokens, activations made halves and all; attention of one
    sequence's tokens, from its first on; and all of a prompt."""
    print("| product, TFLOP/s |", " | ".join(f"{n} x {k}" for n, k in SHAPES), "|")
    for variant in variants:
        for t in (128, 512, 2048):
            cells = []
            for n, k in SHAPES:
                took = bench.gpu.seconds(partial(repeated, bench, variant, t, n, k, 8))
                cells.append(f"{8 * 2 * t * n * k / took / 1e12:.0f}")
            print(f"| {variant} T={t} |", " | ".join(cells), "|", flush=True)
    for t in (512, 2048, 8192):
        took = bench.gpu.seconds(partial(attend, bench, t))
        work = 4 * HEADS * HEAD_DIM * t * (t + 1) / 2
        print(
            f"| attention of {t} tokens | {took * 1e3:.3f} ms | {work / took / 1e12:.0f} TFLOP/s |"
        )
    for variant in variants:
        for t in (512, 2048):
            took = bench.gpu.seconds(partial(prompt, bench, variant, t))
            print(
                f"| prompt {variant} T={t} | {took * 1e3:.2f} ms, {t / took:.0f} tok/s |",
                flush=True,
            )


def one_sequence(bench: Bench, t: int) -> dict[str, int]:
    """Addresses of the arrays of a batch of the first t tokens of one sequence."""
    arrays = {
        "positions": np.arange(t, dtype=np.int32),
        "seq_of": np.zeros(t, np.int32),
        "block_tables": np.arange(t // 64, dtype=np.int32),
    }
    for name, array in arrays.items():
        key = f"{name} of one {t}"
        if key not in bench.buffers:
            bench.buffers[key] = bench.gpu.put(array)
    return {name: bench.buffers[f"{name} of one {t}"] for name in arrays}


def paged_shapes(t: int) -> Shapes:
    cache = (t // 64, KV_HEADS, 64, HEAD_DIM)
    where = {"positions": (t,), "seq_of": (t,), "block_tables": (1, t // 64)}
    return {"q": (t, HEADS, HEAD_DIM), "k_cache": cache, "v_cache": cache, **where}


def attend(bench: Bench, t: int) -> None:
    shapes = {"out": (t, HEADS, HEAD_DIM), **paged_shapes(t)}
    bench.row("attention", "f16", shapes, **one_sequence(bench, t), scale=0.1, window=0)


def prompt(bench: Bench, variant: str, t: int) -> None:
    """All rows of a pass over the first t tokens of a sequence, with logits of the last one."""
    at = bench.pool

    def multiply(n: int, k: int, rows: int = t) -> None:
        nonlocal at
        product(bench, variant, rows, n, k, at)
        at += int(np.prod(packed_shape(variant, n, k)))

    qkv = (t, HEADS + 2 * KV_HEADS, HEAD_DIM)
    turned = {**paged_shapes(t), "qkv": qkv, "turns": (t, HEAD_DIM // 2, 2)}
    for _ in range(LAYERS):
        small(bench, "add_rmsnorm", t, 64)
        multiply(QKV, EMBD)
        bench.row("rope_append", "f16", turned, **one_sequence(bench, t))
        attend(bench, t)
        multiply(EMBD, EMBD)
        small(bench, "add_rmsnorm", t, 64)
        multiply(2 * FF, EMBD)
        small(bench, "swiglu", t, 64)
        multiply(EMBD, FF)
    small(bench, "add_rmsnorm", 1, 64)
    multiply(VOCAB, EMBD, 1)


def rows(bench: Bench, tokens: list[int], contexts: list[int]) -> None:
    """The small kernels of a step: microseconds of each, one after another."""
    for t in tokens:
        for context in contexts:
            cells = []
            for op in SMALL:
                took = bench.gpu.seconds(partial(many_small, bench, op, t, context, 100))
                cells.append(f"{op} {took * 1e4:.2f}")
            print(f"| us, T={t} context {context} |", " | ".join(cells), "|", flush=True)


def many_small(bench: Bench, op: str, t: int, context: int, count: int) -> None:
    for _ in range(count):
        small(bench, op, t, context)


SMALL = (
    "add_rmsnorm_quantize",
    "add_rmsnorm",
    "rope_append",
    "attention_chunks",
    "attention_merge_quantize",
    "swiglu_quantize",
    "quantize",
)


def small(bench: Bench, op: str, t: int, context: int) -> None:
    """One of the small kernels of a step of t sequences, each with so many tokens."""
    chunks = -(-context // 64)
    norm: dict[str, tuple[int, ...]] = {"x": (t, EMBD), "y": (t, EMBD), "weight": (EMBD,)}
    parts = {"sums": (t, HEADS, chunks, HEAD_DIM), "weights": (t, HEADS, chunks, 2)}
    cache = (t * chunks, KV_HEADS, 64, HEAD_DIM)
    shapes: Shapes
    if op == "add_rmsnorm_quantize":
        bench.row(op, "", {**norm, **int8_shapes(t, EMBD)}, eps=1e-5)
    elif op == "add_rmsnorm":
        bench.row(op, "", {**norm, "out": (t, EMBD)}, eps=1e-5)
    elif op == "attention_merge_quantize":
        bench.row(op, "", {**int8_shapes(t, EMBD), **parts})
    elif op == "attention_merge":
        bench.row(op, "", {"out": (t, HEADS, HEAD_DIM), **parts})
    elif op == "swiglu_quantize":
        bench.row(op, "", {**int8_shapes(t, FF), "gate_up": (t, 2, FF)})
    elif op == "swiglu":
        bench.row(op, "", {"out": (t, FF), "gate": (t, FF), "up": (t, FF)})
    elif op == "quantize":
        bench.row(op, "", {**int8_shapes(t, EMBD), "x": (t, EMBD)})
    else:
        where = {"positions": (t,), "seq_of": (t,), "block_tables": (t, chunks)}
        numbers = batch(bench, t, context)
        shapes = {"q": (t, HEADS, HEAD_DIM), "k_cache": cache, "v_cache": cache, **where}
        if op == "rope_append":
            qkv = (t, HEADS + 2 * KV_HEADS, HEAD_DIM)
            shapes = {**shapes, "qkv": qkv, "turns": (t, HEAD_DIM // 2, 2)}
            bench.row(op, "f16", shapes, **numbers)
        else:
            bench.row(op, "f16", {**parts, **shapes}, **numbers, scale=0.1, window=0)


def batch(bench: Bench, t: int, context: int) -> dict[str, int]:
    """Addresses of the arrays of a batch of t sequences, each with so many tokens."""
    chunks = -(-context // 64)
    arrays = {
        "positions": np.full(t, context - 1, np.int32),
        "seq_of": np.arange(t, dtype=np.int32),
        "block_tables": np.arange(t * chunks, dtype=np.int32),
    }
    for name, array in arrays.items():
        key = f"{name} {t} {context}"
        if key not in bench.buffers:
            bench.buffers[key] = bench.gpu.put(array)
    return {name: bench.buffers[f"{name} {t} {context}"] for name in arrays}


def step(bench: Bench, variant: str, t: int, context: int) -> None:
    """All rows of a decode step of t sequences, each with so many tokens."""
    quantised = variant not in kernels_cuda.FLOATS and t <= MOST_INT8
    norm, merge, feed = (
        ("add_rmsnorm_quantize", "attention_merge_quantize", "swiglu_quantize")
        if quantised
        else ("add_rmsnorm", "attention_merge", "swiglu")
    )
    at = bench.pool

    def multiply(n: int, k: int) -> None:
        nonlocal at
        product(bench, variant, t, n, k, at)
        at += int(np.prod(packed_shape(variant, n, k)))

    for _ in range(LAYERS):
        small(bench, norm, t, context)
        multiply(QKV, EMBD)
        small(bench, "rope_append", t, context)
        small(bench, "attention_chunks", t, context)
        small(bench, merge, t, context)
        multiply(EMBD, EMBD)
        small(bench, norm, t, context)
        multiply(2 * FF, EMBD)
        small(bench, feed, t, context)
        multiply(EMBD, FF)
    small(bench, norm, t, context)
    multiply(VOCAB, EMBD)


def steps(bench: Bench, variants: list[str], tokens: list[int], contexts: list[int]) -> None:
    for variant in variants:
        for t in tokens:
            for context in contexts:
                cells = []
                for bench.overlap in (True, False):
                    took = bench.gpu.seconds(partial(step, bench, variant, t, context))
                    cells.append(f"{took * 1e3:.3f} ms, {t / took:.0f} tok/s")
                print(
                    f"| step {variant} T={t} context {context} |",
                    " | ".join(cells),
                    "|",
                    flush=True,
                )
    bench.overlap = True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cubins", type=Path)
    parser.add_argument("--parts", default="sweep,products,rows,steps,prefill")
    parser.add_argument("--variants", default="q8_0,q4_0,q4_k,f16")
    parser.add_argument("--tokens", default="1,8,64")
    parser.add_argument("--contexts", default="256")
    parser.add_argument("--pool", type=int, default=16, help="GB of weights")
    given = parser.parse_args()
    bench = Bench(given.cubins, given.pool * 10**9)
    variants = given.variants.split(",")
    tokens = [int(t) for t in given.tokens.split(",")]
    parts = given.parts.split(",")
    if "sweep" in parts:
        print(f"read sweep: {sweep(bench) / 1e9:.0f} GB/s")
    if "products" in parts:
        products(bench, variants, tokens)
    contexts = [int(c) for c in given.contexts.split(",")]
    if "rows" in parts:
        rows(bench, tokens, contexts)
    if "prefill" in parts:
        prefill(bench, variants)
    if "steps" in parts:
        steps(bench, variants, tokens, contexts)


if __name__ == "__main__":
    main()
