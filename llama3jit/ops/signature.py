"""The signature of an op, read off its annotations."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

DTYPES = {
    "u8": "uint8",
    "i8": "int8",
    "u16": "uint16",
    "i32": "int32",
    "i64": "int64",
    "f32": "float32",
    "f64": "float64",
}

_ARRAY = re.compile(r"(\w+)\[([\w\s,]+)\]$")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter: an array has dims, a scalar none, a function no dtype."""

    name: str
    dtype: str  # a key of DTYPES, a name that a variant binds, or "" for a function
    dims: tuple[str, ...] = ()

    @property
    def is_array(self) -> bool:
        return bool(self.dims)

    @property
    def is_function(self) -> bool:
        return not self.dtype


@dataclass(frozen=True, slots=True)
class Signature:
    """Parameters in order, without `items`; `items` is how many items there are, as an expression
    in the dims."""

    parameters: tuple[Parameter, ...]
    items: str

    @property
    def dims(self) -> tuple[str, ...]:
        """Every named dim, in the order of first use; numbers are not named dims."""
        seen = [dim for parameter in self.parameters for dim in parameter.dims]
        return tuple(dict.fromkeys(dim for dim in seen if not dim.isdigit()))

    def count(self, dims: Mapping[str, int]) -> int:
        """How many items there are for these dims."""
        return int(eval(self.items, {"__builtins__": {}}, dict(dims)))


def parse(function: Callable[..., None]) -> Signature:
    """The signature of an op's function.

    Raises TypeError for an annotation that is not of one of the forms of `llama3jit.ops`.
    """
    annotations: dict[str, Any] = dict(function.__annotations__)
    annotations.pop("return", None)
    items = annotations.pop("items", None)
    if items is None:
        raise TypeError(f"op {function.__name__}: its last parameter must be `items`, annotated")
    return Signature(parse_parameters(function.__name__, annotations), items)


def parse_parameters(op: str, annotations: Mapping[str, str]) -> tuple[Parameter, ...]:
    """Parameters from their annotations. Raises TypeError as `parse` does."""
    parameters = []
    for name, text in annotations.items():
        array = _ARRAY.match(text)
        if array:
            dims = tuple(dim.strip() for dim in array[2].split(","))
            parameters.append(Parameter(name, array[1], dims))
        elif text == "function":
            parameters.append(Parameter(name, ""))
        elif text in DTYPES:
            parameters.append(Parameter(name, text))
        else:
            raise TypeError(f"op {op}: cannot read the annotation {name}: {text}")
    return tuple(parameters)
