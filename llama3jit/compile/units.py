"""What is compiled by itself: one op in one variant, or the exports of one module."""

from __future__ import annotations

from dataclasses import dataclass

from kernels_cpu import TUNED, control
from llama3jit import ops


@dataclass(frozen=True, slots=True)
class Unit:
    """`op` empty means the module's EXPORTS; `variant` is a key of the op's variants."""

    module: str
    op: str = ""
    variant: str = ""

    def __str__(self) -> str:
        return f"{self.module}:{self.op}:{self.variant}"

    @property
    def stem(self) -> str:
        """A name for files and symbols."""
        parts = [self.module.replace(".", "_"), self.op, self.variant.replace(":", "_")]
        return "__".join(part for part in parts if part)


def unit_named(name: str) -> Unit:
    """The unit of which `name` is the str; a variant may have colons."""
    return Unit(*name.split(":", 2))


WALKER = Unit("kernels_cpu.walker")
OP_EXPORTS = {"entry": 3, "count": 1}


def exports(unit: Unit) -> dict[str, int]:
    """The functions of a unit, by the names that the loader uses: how many int64 each takes. All
    return an int64."""
    return OP_EXPORTS if unit.op else control.EXPORTS


def symbols(unit: Unit) -> dict[str, str]:
    """The C symbols of a unit's functions, by the same names."""
    return {name: f"l3j_{unit.stem}_{name}" for name in exports(unit)}


# Ops that a CPU runs only where they have a tuned kernel.
TUNED_ALONE = ("matmul_int8", "pack", "attention_chunks", "attention_merge")


def every_unit() -> list[Unit]:
    """All that a model can need on a CPU: the walker, tuned kernels, and portable ops where there
    is no tuned kernel or, as for attention, not for every shape."""
    units = [WALKER]
    for name, module in ops.MODULES.items():
        if name in TUNED_ALONE:
            continue
        tuned = () if name == "attention" else TUNED.get(name, ("", ()))[1]
        portable = [variant for variant in ops.find(name).variants if variant not in tuned]
        units += [Unit(f"llama3jit.ops.{module}", name, variant) for variant in portable]
    for name, (tuned_module, variants) in TUNED.items():
        units += [Unit(tuned_module, name, variant) for variant in variants]
    return units
