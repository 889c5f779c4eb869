"""Weights from the file to their packed form, a few at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from kernels_cpu import TUNED
from llama3jit.compile.units import Unit
from llama3jit.devices.cpu.lower import Lowered
from llama3jit.model import weights
from llama3jit.model.plan import Operand, Row
from llama3jit.ops.pack import padded_rows

MODULE = TUNED["pack"][0]
AT_ONCE = 32 * 2**20  # bytes of the file that packing keeps in memory
INTERLEAVED = padded_rows(1)


@dataclass(slots=True)
class Pass:
    """Rows of the op `pack` to run at once, with operands and arrays, and the weights they read."""

    rows: list[Row] = field(default_factory=list)
    units: list[Unit] = field(default_factory=list)
    operands: dict[str, Operand] = field(default_factory=dict)
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    read: list[str] = field(default_factory=list)
    size: int = 0

    def add(self, packed: NDArray[Any], weight: NDArray[Any], name: str, variant: str) -> None:
        """Pack rows of the weight `name`."""
        names = {"packed": f"packed {len(self.rows)}", "weight": f"weight {len(self.rows)}"}
        for key, array in zip(names.values(), (packed, weight), strict=True):
            self.arrays[key] = array
            self.operands[key] = Operand("weight", "u8", array.shape)
        self.rows.append(Row("pack", dict(names), variant))
        self.units.append(Unit(MODULE, "pack", variant))
        self.read.append(name)
        self.size += packed.nbytes


def pack_units(lowered: Lowered) -> list[Unit]:
    """The units that packing takes."""
    return [Unit(MODULE, "pack", v) for v in sorted({v for _, v in lowered.packed.values()})]


def passes(lowered: Lowered, arrays: Mapping[str, NDArray[Any]], gguf: Any) -> Iterator[Pass]:
    """What fills the packed arrays. Few and large, so that other threads have the interpreter; a
    weight that is larger yet takes several, so that never much of the file is in memory."""
    current = Pass()
    for name, (weight, variant) in lowered.packed.items():
        n = int(gguf.tensors[weight].shape[1])
        row_bytes = arrays[name].shape[1]
        whole = weights.matrix(gguf, weight, Operand("weight", "u8", (n, row_bytes)))
        step = max(AT_ONCE // row_bytes // INTERLEAVED, 1) * INTERLEAVED
        for first in range(0, n, step):
            rows = slice(first, first + step)
            current.add(arrays[name][rows], whole[rows], weight, variant)
            if current.size >= AT_ONCE:
                yield current
                current = Pass()
    if current.rows:
        yield current
