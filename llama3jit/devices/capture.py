"""What a forward pass computes on its way, by name: for a device that can stop between rows.

The names, with N a layer and T the tokens: `embd` [T, n_embd]; `blk.N.attn_norm`, `blk.N.ffn_norm`
[T, n_embd], normalised; `blk.N.attn_q`, `.attn_k`, `.attn_v` [T, heads, head_dim] and
`.attn_output`, `.ffn_gate`, `.ffn_up`, `.ffn_down` [T, n], the products of the tensors of these
names, with their biases; `blk.N.q`, `.k` after the rotary embedding; `blk.N.attn_probs`
[heads, T, T]; `blk.N.attended` [T, heads, head_dim], the values summed by these; `blk.N.swiglu`
[T, n_ff]; `blk.N.resid_mid`, `.resid` [T, n_embd], the residual stream after attention and after
the layer; `result_norm` [T, n_embd], what the head reads; `logits` [T, vocab_size].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from llama3jit.devices.bind import written
from llama3jit.errors import UnsupportedError
from llama3jit.model.batch import Batch
from llama3jit.model.plan import Operand, Row
from llama3jit.ops.kv_arrays import taken

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Capture:
    """What is wanted of a sequence: `take` is called on the engine's thread with a name, the
    position of the first token, and float32 values of so many tokens on the first axis; of
    attn_probs [heads, tokens, tokens seen]."""

    names: tuple[str, ...]
    take: Callable[[str, int, NDArray[np.float32]], None]


@dataclass(frozen=True, slots=True)
class Point:
    """After which row a value is there, and in which operand; "" for attn_probs, which are worked
    out from the queries and the cache."""

    row: int
    operand: str


@runtime_checkable
class Pausing(Protocol):
    """A runner that can stop between rows."""

    def rows_for(self, batch: Batch | None) -> tuple[Sequence[Row], Mapping[str, Operand]]:
        """The rows that a pass over the batch walks, and their operands; for None those of most
        passes."""

    def pausing(self, batch: Batch, stops: Sequence[int]) -> Iterator[tuple[int, Arrays]]:
        """Run a pass up to the last of `stops`, numbers of rows that ascend; after each it gives
        the number, and arrays that hold the operands in their first rows until it goes on."""


def names_of(runner: object) -> list[str]:
    """All names that a pass has. Raises UnsupportedError for a device that cannot stop between
    rows."""
    return list(points_of(_pausing(runner).rows_for(None)[0]))


def captured_pass(
    runner: object, batch: Batch, captures: Mapping[int, Capture]
) -> NDArray[np.float32]:
    """A pass that shows what is wanted of the sequences with these numbers in the batch, of their
    tokens with logits alone; the same logits [R, vocab_size] as `forward`. If no other sequence is
    there, and no logits are wanted, the head is left out, and they are [R, 0]."""
    device = _pausing(runner)
    rows, operands = device.rows_for(batch)
    points = points_of(rows)
    wanted: dict[int, list[tuple[str, int]]] = {}
    for s, capture in captures.items():
        for name in capture.names:
            wanted.setdefault(points[name].row, []).append((name, s))
    last = len(rows) - 1
    if len(captures) == len(batch.context_lens) and points["logits"].row not in wanted:
        cached = max(i for i, row in enumerate(rows) if row.op == "kv_append")
        last = max(cached, *wanted)
    logits = np.zeros((len(batch.logits_rows), 0), np.float32)
    for at, arrays in device.pausing(batch, sorted({*wanted, last})):
        for name, s in wanted.get(at, ()):
            asked = np.flatnonzero(batch.seq_of[batch.logits_rows] == s)
            if len(asked) == 0:  # what was shown before, and is computed again
                continue
            tokens = batch.logits_rows[asked]
            operand = points[name].operand
            if operand:
                per_token = operands[operand].shape[0] == "T"
                values = arrays[operand][tokens if per_token else asked]
            else:
                values = _attention_probs(rows[at], batch, s, tokens, arrays)
            captures[s].take(name, int(batch.positions[tokens[0]]), values.astype(np.float32))
        if at == last and last == len(rows) - 1:
            logits = arrays["logits"][: len(batch.logits_rows)].astype(np.float32, copy=False)
    return logits


def points_of(rows: Sequence[Row]) -> dict[str, Point]:
    """Where each name is, in the order of the rows."""
    points: dict[str, Point] = {}
    block = product = ""
    for i, row in enumerate(rows):
        out = written(row)[0]
        name = ""
        if row.op == "embed":
            name = "embd"
        elif row.op == "rmsnorm":
            name = str(row.operands["weight"]).removesuffix(".weight")
            block = name.rpartition(".")[0] or block
            name = "result_norm" if name == "output_norm" else name
        elif row.op.startswith("matmul"):
            product = str(row.operands["weight"]).removesuffix(":packed").removesuffix(".weight")
            name = "logits" if out == "logits" else product
        elif row.op == "add_bias":
            name = "logits" if out == "logits" else product
        elif row.op == "rope":
            name = f"{block}.{row.operands['x']}"
        elif row.op in ("attention", "attention_chunks"):
            points[f"{block}.attn_probs"] = Point(i, "")
        elif row.op == "swiglu":
            name = f"{block}.swiglu"
        elif row.op == "add":
            name = f"{block}.resid_mid" if product.endswith("attn_output") else f"{block}.resid"
        if row.op != "select_rows" and out == "attended":  # turned back, of a quantised cache
            name = f"{block}.attended"
        if name:
            points[name] = Point(i, out)
    return points


def _pausing(runner: object) -> Pausing:
    if not isinstance(runner, Pausing):
        device = getattr(runner, "device", "this device")
        raise UnsupportedError(
            f"what a pass computes on its way cannot be had from {device}: open the model with "
            f"device='cpu' or device='reference'"
        )
    return runner


def _attention_probs(
    row: Row, batch: Batch, s: int, tokens: NDArray[np.int32], arrays: Arrays
) -> NDArray[np.float64]:
    """[heads, tokens, tokens seen]: the softmax of the queries times the cached keys."""
    q = arrays[str(row.operands["q"])][tokens].astype(np.float64)
    k_cache, v_cache = (arrays[str(row.operands[name])] for name in ("k_cache", "v_cache"))
    n_seen = int(batch.context_lens[s])
    blocks = batch.block_tables[s, : -(-n_seen // k_cache.shape[3])]
    k, _ = taken(k_cache, v_cache, blocks, row.variant)
    k = np.repeat(k[:n_seen], q.shape[1] // k.shape[1], axis=1)
    scores = np.einsum("thd,jhd->htj", q, k) * float(row.operands["scale"])
    ages = batch.positions[tokens][:, None] - np.arange(n_seen)[None, :]
    window = int(row.operands["window"]) or n_seen
    scores = np.where((ages >= 0) & (ages < window), scores, -np.inf)
    weights: NDArray[np.float64] = np.exp(scores - scores.max(axis=2, keepdims=True))
    weights /= weights.sum(axis=2, keepdims=True)
    return weights
