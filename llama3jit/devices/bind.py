"""What the dims of an op are for a row of a plan."""

from __future__ import annotations

from collections.abc import Collection
from math import prod

from llama3jit.model.plan import Shape
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
