"""A plan for a GPU: a kernel for every row, tuned where there is one. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import kernels_cuda
from kernels_cuda import Launch
from llama3jit import ops
from llama3jit.compile.cuda.units import is_tuned, portable_unit, tuned_unit
from llama3jit.compile.units import Unit
from llama3jit.devices import Limits
from llama3jit.devices.bind import bind_dims
from llama3jit.model.plan import Operand, Plan, Row

THREADS = 64  # of a block of a portable kernel
MOST_BLOCKS = 65536  # of a portable kernel's grid; its threads stride over what is more
# Ops that know how the cache is laid out: all tuned, or none.
CACHE_OPS = ("kv_append", "attention")


@dataclass(frozen=True, slots=True)
class Shape:
    """What a graph is made for: tokens, rows of logits, sequences, and blocks of a sequence, each
    as many or more than a batch has."""

    n_tokens: int
    n_rows: int
    n_sequences: int
    n_blocks: int


@dataclass(slots=True)
class Lowered:
    """Rows in order, the compiled unit of each, and all operands.

    `packed` maps the name of a packed operand to the weight it is made of and its format.
    """

    rows: list[Row] = field(default_factory=list)
    units: list[Unit] = field(default_factory=list)
    operands: dict[str, Operand] = field(default_factory=dict)
    packed: dict[str, tuple[str, str]] = field(default_factory=dict)

    def append(self, row: Row, unit: Unit) -> None:
        self.rows.append(row)
        self.units.append(unit)


def lower(
    plan: Plan, precision: str, n_tokens: int, n_rows: int, *, portable: bool = False
) -> Lowered:
    """Choose a kernel for every row of a pass of so many tokens and rows of logits; without rows
    it ends when the cache is filled. `portable` takes none of the tuned kernels."""
    lowered = Lowered(operands=dict(plan.operands))
    counts = {"T": n_tokens, "R": max(n_rows, 1)}
    exact = portable or precision == "exact"
    variants = [(row.op, row.variant) for row in plan.rows if row.op in CACHE_OPS]
    tuned_cache = all(tuned_unit(*variant, n_tokens) is not None for variant in variants)
    last = max(i for i, row in enumerate(plan.rows) if row.op == "kv_append" or n_rows)
    for row in plan.rows[: last + 1]:
        tokens = counts[str(plan.operands[str(first_operand(row))].shape[0])]
        unit = None
        if not exact and (tuned_cache or row.op not in CACHE_OPS):
            unit = tuned_unit(row.op, row.variant, tokens)
        lowered.append(row, unit or portable_unit(row.op, row.variant))
    used = {value for row in lowered.rows for value in row.operands.values()}
    lowered.operands = {name: value for name, value in lowered.operands.items() if name in used}
    return lowered


def first_operand(row: Row) -> str:
    """The operand whose first dim is the tokens, or rows, that a row works on."""
    op = ops.find(row.op)
    parameter = op.signature.parameters[op.outputs if row.op == "kv_append" else 0]
    return str(row.operands[parameter.name])


def lower_all(plan: Plan, precision: str, limits: Limits, *, portable: bool = False) -> Lowered:
    """All units and operands that passes of any number of tokens have."""
    every = Lowered()
    count = 1
    while True:
        count = min(count, limits.max_tokens)
        lowered = lower(plan, precision, count, count, portable=portable)
        for row, unit in zip(lowered.rows, lowered.units, strict=True):
            if unit not in every.units:
                every.append(row, unit)
        every.operands |= lowered.operands
        every.packed |= lowered.packed
        if count == limits.max_tokens:
            return every
        count *= 2


def shape_of(limits: Limits, n_tokens: int, n_rows: int, n_blocks: int) -> Shape:
    """The shape for a batch: the next powers of two, of blocks those of four, so that few graphs
    serve all batches."""
    tokens = min(_power(2, n_tokens), limits.max_tokens)
    return Shape(
        n_tokens=tokens,
        n_rows=min(_power(2, n_rows), limits.max_logits_rows) if n_rows else 0,
        n_sequences=min(tokens, limits.max_sequences),
        n_blocks=min(_power(4, n_blocks), most_blocks(limits)),
    )


def largest_shape(limits: Limits) -> Shape:
    """One that no batch exceeds."""
    return Shape(
        limits.max_tokens, limits.max_logits_rows, limits.max_sequences, most_blocks(limits)
    )


def most_blocks(limits: Limits) -> int:
    """KV blocks of one sequence."""
    return -(-limits.n_ctx // limits.block_tokens)


def _power(base: int, n: int) -> int:
    """The least power of the base that is n or more."""
    power = 1
    while power < n:
        power *= base
    return power


def sizes_of(shape: Shape, limits: Limits) -> dict[str, int]:
    """What each symbol of a plan is in a pass of this shape."""
    return {
        "T": shape.n_tokens,
        "R": max(shape.n_rows, 1),
        "S": shape.n_sequences,
        "B": shape.n_blocks,
        "n_blocks": limits.n_blocks,
    }


def extent(operand: Operand, sizes: Mapping[str, int]) -> int:
    """How many values an operand has."""
    count = 1
    for dim in operand.shape:
        count *= sizes[dim] if isinstance(dim, str) else dim
    return count


def dims_of(row: Row, operands: Mapping[str, Operand], sizes: Mapping[str, int]) -> dict[str, int]:
    """The number that each dim of the row's op is."""
    bound = bind_dims(ops.find(row.op), row, operands)
    return {name: sizes[dim] if isinstance(dim, str) else dim for name, dim in bound.items()}


def launch_of(unit: Unit, dims: Mapping[str, int]) -> Launch:
    """How to launch a unit's kernel on these dims."""
    if is_tuned(unit):
        return kernels_cuda.launch(unit.op, unit.variant, dims)
    items = ops.find(unit.op).signature.count(dims)
    blocks = min(max(1, -(-items // THREADS)), MOST_BLOCKS)
    return Launch((blocks, 1, 1), (THREADS, 1, 1))
