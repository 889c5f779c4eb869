"""Lowered rows to the words that the walker reads (see llama3jit.compile.entry)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llama3jit import ops
from llama3jit.compile import entry
from llama3jit.compile.library import Library
from llama3jit.compile.units import Unit
from llama3jit.devices.bind import bind_dims
from llama3jit.model.plan import Operand, Row, Shape
from llama3jit.ops.op import Op

Int64 = NDArray[np.int64]

# Words of a row: how many bytes its words are, and whether all threads meet after it.
ROW_BYTES, BARRIER = 2, 3


class Dims:
    """The int64 that rows point to for their dims: one for each symbol and each number in use."""

    def __init__(self, symbols: tuple[str, ...]) -> None:
        self._words = np.zeros(4096, np.int64)
        self._address = int(self._words.ctypes.data)
        self._index: dict[str | int, int] = {}
        for symbol in symbols:
            self.address(symbol)

    def address(self, dim: str | int) -> int:
        """The address of a dim's word; a number's word holds it, a symbol's what `set` puts."""
        if dim not in self._index:
            assert len(self._index) < len(self._words)
            self._index[dim] = len(self._index)
            if isinstance(dim, int):
                self._words[self._index[dim]] = dim
        return self._address + entry.WORD * self._index[dim]

    def set(self, symbol: str, value: int) -> None:
        """Give a symbol its value for the passes to come."""
        self._words[self._index[symbol]] = value


def assemble(
    rows: list[Row],
    units: list[Unit],
    barriers: list[bool],
    operands: Mapping[str, Operand],
    arrays: Mapping[str, NDArray[Any]],
    dims: Dims,
    library: Library,
) -> Int64:
    """The words of all rows, one after the other. `arrays` must outlive them."""
    words: list[int] = []
    addresses: dict[str, int] = {}
    bind = cache(_bind)  # most layers have the same shapes
    for row, unit, barrier in zip(rows, units, barriers, strict=True):
        op = ops.find(row.op)
        index = entry.words(op)
        record = [0] * (entry.HEADER_WORDS + len(index))
        record[0] = library.address(unit, "entry")
        record[1] = library.address(unit, "count")
        record[ROW_BYTES] = len(record) * entry.WORD
        record[BARRIER] = int(barrier)
        shapes: list[Shape] = []
        for parameter in op.signature.parameters:
            if parameter.is_array:
                name = str(row.operands[parameter.name])
                if name not in addresses:
                    assert arrays[name].flags.c_contiguous
                    addresses[name] = int(arrays[name].ctypes.data)
                record[index[parameter.name]] = addresses[name]
                shapes.append(operands[name].shape)
            elif not parameter.is_function:
                number = float(row.operands[parameter.name])
                record[index[parameter.name]] = _bits(parameter.dtype, number)
        for dim_name, dim in bind(op, tuple(shapes)).items():
            record[index[f"dim {dim_name}"]] = dims.address(dim)
        words.extend(record)
    return np.array(words, np.int64)


def _bind(op: Op, shapes: tuple[Shape, ...]) -> dict[str, int | str]:
    return bind_dims(op.name, op.signature, shapes)


@cache
def _bits(dtype: str, number: float) -> int:
    """A scalar as the low bits of a word."""
    if dtype == "f32":
        return int(np.float32(number).view(np.uint32))
    assert dtype == "i64"
    return int(number)


def split_words(words: Int64) -> list[Int64]:
    """The words of each row by itself, as views."""
    found, at = [], 0
    while at < len(words):
        end = at + int(words[at + ROW_BYTES]) // entry.WORD
        found.append(words[at:end])
        at = end
    return found
