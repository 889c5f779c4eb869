"""A plan for the CPU: tuned kernels where there are some, packed weights, int8 activations in fast
mode, and barriers only where data flows. Pure functions from plan to plan."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from kernels_cpu import TUNED
from llama3jit import ops
from llama3jit.compile.units import Unit
from llama3jit.devices.bind import written
from llama3jit.model.plan import Operand, Plan, Row
from llama3jit.ops.pack import padded_rows
from llama3jit.ops.split_attention import FEW


@dataclass(slots=True)
class Lowered:
    """Rows in order, the compiled unit of each, whether a barrier follows it, and all operands.

    `packed` maps the name of a packed operand to the weight it is made of and its format.
    """

    rows: list[Row] = field(default_factory=list)
    units: list[Unit] = field(default_factory=list)
    barriers: list[bool] = field(default_factory=list)
    operands: dict[str, Operand] = field(default_factory=dict)
    packed: dict[str, tuple[str, str]] = field(default_factory=dict)


def lower(plan: Plan, precision: str) -> Lowered:
    """Choose a kernel for every row; `precision` "fast" allows int8 activations, "exact" does
    not."""
    lowered = Lowered(operands=dict(plan.operands))
    quantised: dict[str, dict[str, str]] = {}
    for row in plan.rows:
        if row.op == "matmul":
            _lower_matmul(lowered, row, precision, quantised)
        else:
            _append(lowered, row, tuned=_has_tuned(lowered, row))
        for name in written(row):
            quantised.pop(name, None)
    used = {value for row in lowered.rows for value in row.operands.values()}
    lowered.operands = {name: value for name, value in lowered.operands.items() if name in used}
    lowered.barriers = barriers(lowered.rows)
    return lowered


def barriers(rows: list[Row]) -> list[bool]:
    """After which rows all threads must meet: where the next one reads what was written since the
    last meeting, or writes what was read or written since. After the last one always."""
    outputs = [set(written(row)) for row in rows]
    named = [{v for v in row.operands.values() if isinstance(v, str)} for row in rows]
    result = []
    reads: set[str] = set()
    writes: set[str] = set()
    for i, out in enumerate(outputs):
        reads |= named[i] - out
        # What is written may be read too, as by an op that works in place.
        writes |= out
        meet = i + 1 == len(rows) or bool(named[i + 1] & writes or outputs[i + 1] & reads)
        if meet:
            reads, writes = set(), set()
        result.append(meet)
    return result


def _append(lowered: Lowered, row: Row, *, tuned: bool) -> None:
    module = TUNED[row.op][0] if tuned else f"llama3jit.ops.{ops.MODULES[row.op]}"
    lowered.rows.append(row)
    lowered.units.append(Unit(module, row.op, row.variant))


def _has_tuned(lowered: Lowered, row: Row) -> bool:
    if row.op not in TUNED or row.variant not in TUNED[row.op][1]:
        return False
    if row.op == "attention":
        head_dim = lowered.operands[str(row.operands["q"])].shape[-1]
        return isinstance(head_dim, int) and head_dim % 16 == 0 and head_dim <= 256
    return True


def is_split(unit: Unit) -> bool:
    """Whether a unit is the attention that is summed by chunks; the portable one is not, so
    splitting it would change its bits."""
    return unit.op == "attention" and unit.module == TUNED["attention"][0]


def split_units(lowered: Lowered) -> list[Unit]:
    """The units that `split_attention` brings in."""
    variants = dict.fromkeys(unit.variant for unit in lowered.units if is_split(unit))
    chunks, merge = TUNED["attention_chunks"][0], TUNED["attention_merge"][0]
    units = [Unit(chunks, "attention_chunks", variant) for variant in variants]
    return [*units, Unit(merge, "attention_merge")] if units else []


def chunk_operands(lowered: Lowered) -> dict[str, Operand]:
    """What `split_attention` keeps the sums of chunks in."""
    for row, unit in zip(lowered.rows, lowered.units, strict=True):
        if is_split(unit):
            _, heads, head_dim = lowered.operands[str(row.operands["q"])].shape
            return {
                "chunk.sums": Operand("buffer", "f32", (FEW, heads, "chunks", head_dim)),
                "chunk.weights": Operand("buffer", "f32", (FEW, heads, "chunks", 2)),
            }
    return {}


def split_attention(lowered: Lowered) -> Lowered:
    """The same for a few tokens over long contexts, whose chunks the threads share."""
    operands = {**lowered.operands, **chunk_operands(lowered)}
    split = Lowered(operands=operands, packed=lowered.packed)
    parts: dict[str, str | float | int] = {"sums": "chunk.sums", "weights": "chunk.weights"}
    for row, unit in zip(lowered.rows, lowered.units, strict=True):
        if is_split(unit):
            inputs = {name: value for name, value in row.operands.items() if name != "out"}
            chunks = Row("attention_chunks", {**parts, **inputs}, row.variant)
            _append(split, chunks, tuned=True)
            _append(
                split, Row("attention_merge", {"out": row.operands["out"], **parts}), tuned=True
            )
        else:
            split.rows.append(row)
            split.units.append(unit)
    split.barriers = barriers(split.rows)
    return split


def _lower_matmul(
    lowered: Lowered, row: Row, precision: str, quantised: dict[str, dict[str, str]]
) -> None:
    if not _has_tuned(lowered, row):
        _append(lowered, row, tuned=False)
        return
    weight, x = str(row.operands["weight"]), str(row.operands["x"])
    packed = _pack(lowered, weight, row.variant)
    if precision == "fast" and row.variant in TUNED["matmul_int8"][1]:
        if x not in quantised:
            quantised.clear()  # the buffers of a shape are shared, so one x at a time
            quantised[x] = _quantize(lowered, x)
        operands = {"out": row.operands["out"], "weight": packed, **quantised[x]}
        _append(lowered, Row("matmul_int8", operands, row.variant), tuned=True)
    else:
        operands = {"out": row.operands["out"], "weight": packed, "x": x}
        _append(lowered, Row("matmul", operands, row.variant), tuned=True)


def _pack(lowered: Lowered, weight: str, variant: str) -> str:
    name = f"{weight}:packed"
    n, row_bytes = lowered.operands[weight].shape
    assert isinstance(n, int)
    lowered.operands[name] = Operand("packed", "u8", (padded_rows(n), row_bytes))
    lowered.packed[name] = (weight, variant)
    return name


def padded_width(n: int) -> int:
    """Bytes from one token's int8 activations to the next's. A cache has 64 sets of lines; tokens
    that are worked on together lie in different ones, 8 lines of each."""
    lines = -(-n // 64)
    while lines % 16 == 0:
        lines += 8
    return 64 * lines


def _quantize(lowered: Lowered, x: str) -> dict[str, str]:
    """A row that quantises x, and the operands it gives."""
    rows, *rest = lowered.operands[x].shape
    n = prod(int(dim) for dim in rest)
    names = {key: f"{key}.{rows}.{n}" for key in ("xq", "xs", "xsum", "xtotal")}
    lowered.operands[names["xq"]] = Operand("buffer", "i8", (rows, padded_width(n)))
    for key, dtype, each in (("xs", "f32", 32), ("xsum", "i32", 16), ("xtotal", "f32", 32)):
        lowered.operands[names[key]] = Operand("buffer", dtype, (rows, n // each))
    row = Row("quantize", {**names, "x": x})
    _append(lowered, row, tuned=_has_tuned(lowered, row))
    return names
