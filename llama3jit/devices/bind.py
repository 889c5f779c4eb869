"""What the dims of an op are for a row of a plan."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import prod

from llama3jit.model.plan import Operand, Row
from llama3jit.ops.signature import Signature


def bind_dims(
    signature: Signature,
    row: Row,
    operands: Mapping[str, Operand],
    skip: Collection[str] = (),
) -> dict[str, int | str]:
    """What each dim of an op is for this row, as all parameters but those to skip have it. An
    operand may have more dims than the parameter: its trailing ones are taken together.

    Raises AssertionError where two parameters disagree: the plan is wrong.
    """
    bound: dict[str, int | str] = {}
    for parameter in signature.parameters:
        if not parameter.is_array or parameter.name in skip:
            continue
        shape = operands[str(row.operands[parameter.name])].shape
        leading, rest = shape[: len(parameter.dims) - 1], shape[len(parameter.dims) - 1 :]
        last = rest[0] if len(rest) == 1 else prod(int(dim) for dim in rest)
        for name, value in zip(parameter.dims, (*leading, last), strict=True):
            expected = int(name) if name.isdigit() else bound.setdefault(name, value)
            assert expected == value, f"{row.op}: {parameter.name} has {name} = {value}, {expected}"
    return bound
