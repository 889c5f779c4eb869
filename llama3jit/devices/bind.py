"""What an op is for a row of a plan: its dims, and what it writes."""

from __future__ import annotations

from collections.abc import Collection
from math import prod

from llama3jit import ops
from llama3jit.model.plan import Row, Shape
from llama3jit.ops.signature import Signature


def bind_dims(
    op: str, signature: Signature, shapes: tuple[Shape, ...], skip: Collection[str] = ()
) -> dict[str, int | str]:
    """What each dim of an op is for arrays of these shapes, one for each array parameter, as all
    but those to skip have it. A shape may have more dims than the parameter: its trailing ones are
    taken together.

    Raises AssertionError where two parameters disagree: the plan is wrong.
    """
    bound: dict[str, int | str] = {}
    arrays = [parameter for parameter in signature.parameters if parameter.is_array]
    for parameter, shape in zip(arrays, shapes, strict=True):
        if parameter.name in skip:
            continue
        leading, rest = shape[: len(parameter.dims) - 1], shape[len(parameter.dims) - 1 :]
        last = rest[0] if len(rest) == 1 else prod(int(dim) for dim in rest)
        for name, value in zip(parameter.dims, (*leading, last), strict=True):
            expected = int(name) if name.isdigit() else bound.setdefault(name, value)
            assert expected == value, f"{op}: {parameter.name} has {name} = {value}, {expected}"
    return bound


def written(row: Row) -> list[str]:
    """The operands that a row of a plan writes."""
    op = ops.find(row.op)
    names = [parameter.name for parameter in op.signature.parameters[: op.outputs]]
    return [str(row.operands[name]) for name in names]
