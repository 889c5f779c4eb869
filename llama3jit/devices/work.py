"""What the rows of a pass have to do at least: bytes in and out of memory, and operations."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from llama3jit.model.batch import Batch
from llama3jit.model.plan import BLOCK_TOKENS, Operand, Row
from llama3jit.ops.signature import DTYPES, Signature

GATHERS = ("embed", "select_rows")  # these read as many rows of a matrix as they write


@dataclass(frozen=True, slots=True)
class TimedRow:
    """A row of a pass as it was measured: what ran, the sizes that tell it from others of its kind,
    seconds, and the least bytes and operations, a product and a sum being two."""

    name: str
    sizes: str
    seconds: float
    nbytes: int
    operations: int


def work_of(
    row: Row,
    signature: Signature,
    operands: Mapping[str, Operand],
    sizes: Mapping[str, int],
    batch: Batch,
) -> tuple[int, int]:
    """Bytes, each array once, of the caches what is seen and of what is gathered from as many rows
    as are written, and operations of a row. `sizes` says what the symbols of operands are; an array
    of other symbols is left out."""
    nbytes = 0
    window = int(row.operands.get("window", 0))
    arrays = [parameter for parameter in signature.parameters if parameter.is_array]
    named = {str(row.operands[parameter.name]) for parameter in arrays}
    for name in sorted(named):
        operand = operands[name]
        numbers = _numbers(operand, sizes)
        itemsize = np.dtype(DTYPES[operand.dtype]).itemsize
        if operand.kind == "cache":
            tokens = len(batch.tokens)
            if "append" not in row.op:
                seen = int(batch.context_lens.sum())
                tokens = min(seen, window + tokens - 1) if window else seen
            nbytes += prod(numbers[1:]) * itemsize * tokens // BLOCK_TOKENS
        elif row.op in GATHERS and name != row.operands["out"] and len(numbers) > 1:
            written = _numbers(operands[str(row.operands["out"])], sizes)[0]
            nbytes += written * prod(numbers[1:]) * itemsize
        else:
            nbytes += prod(numbers) * itemsize
    return nbytes, operations_of(row, operands, sizes, seen_by(batch, window))


def sizes_of_batch(batch: Batch) -> dict[str, int]:
    """What the symbols of a batch's arrays are."""
    sizes = {"T": len(batch.tokens), "S": len(batch.context_lens), "R": len(batch.logits_rows)}
    return {**sizes, "B": batch.block_tables.shape[1]}


def operations_of(
    row: Row, operands: Mapping[str, Operand], sizes: Mapping[str, int], seen: int
) -> int:
    """Two for each product of a matrix, four for each component of what attention sees."""
    if row.op.startswith("matmul"):
        rows, n_out = _numbers(operands[str(row.operands["out"])], sizes, 2)
        return 2 * rows * n_out * columns_of(row, operands)
    if row.op in ("attention", "attention_chunks"):
        _, heads, head_dim = _numbers(operands[str(row.operands["q"])], sizes)
        return 4 * heads * head_dim * seen
    return 0


def columns_of(row: Row, operands: Mapping[str, Operand]) -> int:
    """Columns of the matrix of a product, as its activations have them."""
    if "K" in row.operands:
        return int(row.operands["K"])
    if "xs" in row.operands:
        return 32 * int(operands[str(row.operands["xs"])].shape[-1])
    return prod(int(dim) for dim in operands[str(row.operands["x"])].shape[1:])


def sizes_text(row: Row, operands: Mapping[str, Operand], sizes: Mapping[str, int]) -> str:
    """A product's matrix, else the shape of the queries or keys, or of what the row writes."""
    first = operands[str(next(value for value in row.operands.values() if value in operands))]
    if "q" in row.operands:
        first = operands[str(row.operands["q"])]
    elif "k" in row.operands:
        first = operands[str(row.operands["k"])]
    if row.op.startswith("matmul"):
        return f"{prod(_numbers(first, sizes)[1:])} x {columns_of(row, operands)}"
    return " x ".join(map(str, _numbers(first, sizes)))


def seen_by(batch: Batch, window: int) -> int:
    """How many tokens all tokens of a batch see together."""
    seen = batch.positions.astype(np.int64) + 1
    return int((np.minimum(seen, window) if window else seen).sum())


def _numbers(operand: Operand, sizes: Mapping[str, int], most: int = 0) -> list[int]:
    """The dims of an operand as numbers, 0 for symbols of other names; with `most`, the trailing
    ones are taken together."""
    dims = [sizes.get(dim, 0) if isinstance(dim, str) else dim for dim in operand.shape]
    return [*dims[: most - 1], prod(dims[most - 1 :])] if most else dims


def grouped(rows: Collection[TimedRow]) -> list[tuple[TimedRow, int]]:
    """Rows of one name and sizes as one, of their sums, and how many; the longest first."""
    found: dict[tuple[str, str], list[TimedRow]] = {}
    for row in rows:
        found.setdefault((row.name, row.sizes), []).append(row)
    groups = [
        (
            TimedRow(
                *key,
                sum(row.seconds for row in members),
                sum(row.nbytes for row in members),
                sum(row.operations for row in members),
            ),
            len(members),
        )
        for key, members in found.items()
    ]
    return sorted(groups, key=lambda group: -group[0].seconds)
