"""A forward pass as data: rows of ops over named operands.

A row names an op, a variant of it, and what each parameter is: a buffer, a weight, an array of the
batch, or a number. Shapes hold numbers and the names of what changes from pass to pass (T tokens,
R rows of logits) or is the device's choice (n_blocks, S, B). A device interprets the plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Dim = int | str
Shape = tuple[Dim, ...]

BLOCK_TOKENS = 64  # tokens of a KV block


@dataclass(frozen=True, slots=True)
class Operand:
    """An array by name. `kind` says who owns it: "buffer", "cache", "batch", "weight" (as in the
    file), "vector" (a weight as float32), or "table" (computed at load)."""

    kind: str
    dtype: str  # a key of ops.signature.DTYPES
    shape: Shape


@dataclass(frozen=True, slots=True)
class Row:
    """One call: `operands` maps each parameter of the op to an operand's name or a number."""

    op: str
    operands: Mapping[str, str | float | int]
    variant: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """The rows, and every operand that they name."""

    rows: list[Row] = field(default_factory=list)
    operands: dict[str, Operand] = field(default_factory=dict)


BATCH_ARRAYS = {
    "tokens": Operand("batch", "i32", ("T",)),
    "positions": Operand("batch", "i32", ("T",)),
    "seq_of": Operand("batch", "i32", ("T",)),
    "block_tables": Operand("batch", "i32", ("S", "B")),
    "logits_rows": Operand("batch", "i32", ("R",)),
}


def format_plan(plan: Plan) -> str:
    """The rows as an aligned text table."""
    lines = [("row", "op", "operands")]
    for i, row in enumerate(plan.rows):
        name = f"{row.op}.{row.variant}" if row.variant else row.op
        operands = ", ".join(f"{key}={_describe(plan, v)}" for key, v in row.operands.items())
        lines.append((str(i), name, operands))
    widths = [max(len(line[column]) for line in lines) for column in range(2)]
    return "\n".join(f"{a:>{widths[0]}}  {b:<{widths[1]}}  {c}" for a, b, c in lines)


def _describe(plan: Plan, value: str | float | int) -> str:
    if not isinstance(value, str):
        return f"{value:g}"
    operand = plan.operands[value]
    return f"{value}:{operand.dtype}[{', '.join(map(str, operand.shape))}]"
