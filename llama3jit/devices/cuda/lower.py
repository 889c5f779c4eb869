"""A plan for a GPU: a kernel for every row, tuned where there is one, with several rows in one
where there is such a kernel. Pure functions from plan to plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod

import kernels_cuda
from kernels_cuda import Launch
from kernels_cuda.leading import LEADING
from llama3jit.compile.cuda.units import Chip, is_tuned, signature_of, tell_kernels, tuned_unit
from llama3jit.compile.units import Unit
from llama3jit.devices import Limits
from llama3jit.devices.bind import bind_dims
from llama3jit.devices.cuda.arrange import arranged
from llama3jit.devices.cuda.shapes import Shape, counts_up_to, most_blocks, sizes_of
from llama3jit.model.plan import Operand, Plan, Row

THREADS = 64  # of a block of a portable kernel
MOST_BLOCKS = 65536  # of a portable kernel's grid; its threads stride over what is more

# Ops that know how the cache is laid out: all tuned, or none.
CACHE_OPS = ("kv_append", "attention")
# Tokens up to which attention is summed by chunks, whose sums take memory for each token: always,
# and where every token is of another sequence.
FEW, FEW_ALONE = 64, 128
# Tokens times KV blocks up to which there is memory for the sums of chunks, where attention of many
# tokens could be taken in their place.
MOST_CHUNKS = 4096
MOST_SHARED_HEADS = 16  # query heads to a KV head, for the tuned attention
# Tokens of several sequences, one each, and rows of logits, up to which a product takes int8; so a
# token that is decoded is worked out in the same way, however many others are.
MOST_INT8 = 16
MOST_FLOATS = 8  # and one of floats its own kernel, though sums then are in another order
INT8 = {"xq": ("i8", 1), "xs": ("f32", 32), "xsum": ("i32", 16), "xtotal": ("f32", 32)}


@dataclass(frozen=True, slots=True)
class Ways:
    """What kernels may be taken: for which chip; whether activations stay in float32; whether none
    of the tuned ones."""

    chip: Chip
    exact: bool = False
    portable: bool = False

    @property
    def tuned(self) -> bool:
        """Whether tuned kernels may be taken that round activations."""
        return not (self.exact or self.portable)


@dataclass(frozen=True, slots=True)
class Counts:
    """Tokens of a pass, rows of logits, whether every token is of another sequence, whether the
    largest logits of each row are found at the end, and KV blocks of the longest sequence."""

    n_tokens: int
    n_rows: int
    alone: bool = False
    leading: bool = False
    n_blocks: int = 1


@dataclass(frozen=True, slots=True)
class Part:
    """A weight of the file in a packed operand: its name, its format, and where it begins."""

    weight: str
    variant: str
    offset: int  # bytes
    nbytes: int


@dataclass(slots=True)
class Lowered:
    """Rows in order, the compiled unit of each, and all operands. `packed` has, for each packed
    operand, the weights that it is made of; `views` are operands that are a part of another: its
    name, and how many bytes from its start."""

    rows: list[Row] = field(default_factory=list)
    units: list[Unit] = field(default_factory=list)
    operands: dict[str, Operand] = field(default_factory=dict)
    packed: dict[str, list[Part]] = field(default_factory=dict)
    views: dict[str, tuple[str, int]] = field(default_factory=dict)
    arena: int = 0  # bytes that the buffers share, of `lower_all` alone

    def append(self, row: Row, unit: Unit) -> None:
        self.rows.append(row)
        self.units.append(unit)


def lower(plan: Plan, ways: Ways, counts: Counts) -> Lowered:
    """Choose a kernel for every row; without rows of logits it ends when the cache is filled."""
    from llama3jit.devices.cuda.fuse import Lowering

    lowering = Lowering(plan, ways, counts)
    lowering.run()
    if counts.leading:
        lowering.find_leading()
    lowered = lowering.lowered
    used = {value for row in lowered.rows for value in row.operands.values()}
    lowered.views = {name: view for name, view in lowered.views.items() if name in used}
    used |= {parent for parent, _ in lowered.views.values()}
    lowered.operands = {name: value for name, value in lowered.operands.items() if name in used}
    lowered.packed = {name: parts for name, parts in lowered.packed.items() if name in used}
    return lowered


def lower_all(plan: Plan, ways: Ways, limits: Limits) -> Lowered:
    """All units, operands and packed weights that passes of any number of tokens have, and the
    bytes that the buffers of a pass share."""
    every = Lowered()
    rows: dict[Unit, Row] = {}
    most = most_blocks(limits)
    for count in sorted({*counts_up_to(limits.max_tokens), limits.max_logits_rows}):
        kinds = {(False, most)}
        if 1 < count <= FEW_ALONE:  # elsewhere it makes no difference
            kinds |= {(True, 1), (True, most)}
        for alone, n_blocks in kinds:
            n_rows = min(count, limits.max_logits_rows)
            counts = Counts(count, n_rows, alone, not ways.portable, n_blocks)
            lowered = lower(plan, ways, counts)
            for row, unit in zip(lowered.rows, lowered.units, strict=True):
                rows.setdefault(unit, row)
            every.operands |= lowered.operands
            every.packed |= lowered.packed
            every.views |= lowered.views
            shape = Shape(count, n_rows, min(count, limits.max_sequences), n_blocks, alone)
            every.arena = max(every.arena, arranged(lowered, sizes_of(shape, limits))[1])
    for unit, row in rows.items():
        every.append(row, unit)
    return every


def packers(lowered: Lowered) -> list[Unit]:
    """The units that make the packed weights."""
    variants = dict.fromkeys(part.variant for parts in lowered.packed.values() for part in parts)
    return [pack_unit(variant) for variant in variants]


def pack_unit(variant: str) -> Unit:
    """The unit that packs a format."""
    return Unit(kernels_cuda.TUNED["pack"][0], "pack", variant)


def n_leading(ways: Ways, vocab_size: int) -> int:
    """How many of the largest logits of a row are found."""
    return 0 if ways.portable or vocab_size <= LEADING else LEADING


def fit_limits(plan: Plan, ways: Ways, limits: Limits) -> Limits:
    """The limits with as many tokens a pass as the tuned kernels take, where there are such for
    few tokens alone."""
    most = limits.max_tokens
    for row in plan.rows:
        if row.op == "matmul":
            counts = counts_up_to(most)
            fitting = [n for n in counts if product_op(row, plan.operands, n, ways)]
            most = max(fitting, default=most)
        elif row.op == "attention" and has_tuned_cache(plan, ways):
            head_dim = int(plan.operands[str(row.operands["q"])].shape[-1])
            if many_attention(row, head_dim, ways) is None:
                most = min(most, FEW)
    most = min(max(most, limits.max_sequences), limits.max_tokens)
    rows = max(min(limits.max_logits_rows, most), limits.max_sequences)
    return replace(limits, max_tokens=most, max_logits_rows=rows)


def product_op(
    row: Row, operands: Mapping[str, Operand], n_tokens: int, ways: Ways, *, singly: bool = False
) -> str | None:
    """The op whose tuned kernel does a matmul of so many tokens; `singly` where they are one each
    of several sequences."""
    if not ways.tuned:
        return None
    few, many = ("matmul_int8", "matmul"), ("matmul_halves",)
    most = MOST_FLOATS if row.variant in kernels_cuda.FLOATS else MOST_INT8
    takes_few = n_tokens == 1 or (singly and n_tokens <= most)
    for op in (*few, *many) if takes_few else (*many, *few):
        dims = product_dims(row, operands, n_tokens)
        known = f"{row.variant}:" in " ".join(kernels_cuda.TUNED.get(op, ("", ()))[1])
        if known and tuned_unit(op, row.variant, dims, ways.chip) is not None:
            return op
    return None


def product_dims(row: Row, operands: Mapping[str, Operand], n_tokens: int) -> dict[str, int]:
    """The dims of a matmul of so many tokens that a kernel is chosen by."""
    n = operands[str(row.operands["weight"])].shape[0]
    return {"T": n_tokens, "N": int(n), "K": columns(operands[str(row.operands["x"])])}


def columns(operand: Operand) -> int:
    """Values of one row of activations."""
    return prod(int(dim) for dim in operand.shape[1:])


def many_attention(row: Row, head_dim: int, ways: Ways) -> Unit | None:
    """The tuned kernel for attention of many tokens."""
    return tuned_unit("attention", row.variant, {"head_dim": head_dim}, ways.chip)


def has_tuned_cache(plan: Plan, ways: Ways) -> bool:
    """Whether the tuned kernels that fill and read the cache can be taken."""
    if not ways.tuned:
        return False
    for row in plan.rows:
        if row.op == "kv_append" and (tuned_unit(row.op, row.variant, {"T": 1}, ways.chip) is None):
            return False
        if row.op == "attention":
            _, heads, head_dim = plan.operands[str(row.operands["q"])].shape
            kv_heads = plan.operands[str(row.operands["v_cache"])].shape[1]
            dims = {"head_dim": int(head_dim), "T": 1}
            chunks = tuned_unit("attention_chunks", row.variant, dims, ways.chip)
            merge = tuned_unit("attention_merge", "", dims, ways.chip)
            if chunks is None or merge is None or int(heads) > MOST_SHARED_HEADS * int(kv_heads):
                return False
    return True


def int8_operands(shape: tuple[int | str, ...]) -> dict[str, tuple[str, Operand]]:
    """For each int8 parameter the name and the operand that hold activations of this shape."""
    rows, n = shape[0], prod(int(dim) for dim in shape[1:])
    return {
        key: (f"{key}.{rows}.{n}", Operand("buffer", dtype, (rows, n // each)))
        for key, (dtype, each) in INT8.items()
    }


def dims_of(row: Row, operands: Mapping[str, Operand], sizes: Mapping[str, int]) -> dict[str, int]:
    """The number that each dim of the row's op is."""
    signature = signature_of(row.op)
    names = [str(row.operands[p.name]) for p in signature.parameters if p.is_array]
    # Tuned kernels keep keys as values lie, and several ops in one say so.
    skip = ("k_cache",) if row.op in kernels_cuda.FUSED else ()
    bound = bind_dims(row.op, signature, tuple(operands[name].shape for name in names), skip)
    return {name: sizes[dim] if isinstance(dim, str) else dim for name, dim in bound.items()}


def launch_of(unit: Unit, dims: Mapping[str, int], chip: Chip) -> Launch:
    """How to launch a unit's kernel on these dims."""
    if is_tuned(unit):
        tell_kernels(chip)
        return kernels_cuda.launch(unit.op, unit.variant, dims)
    items = signature_of(unit.op).count(dims)
    blocks = min(max(1, -(-items // THREADS)), MOST_BLOCKS)
    return Launch((blocks, 1, 1), (THREADS, 1, 1))
