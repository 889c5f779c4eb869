"""What a GPU can need, and the names that compiled kernels have."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import kernels_cuda
from llama3jit import ops
from llama3jit.compile.cuda.targets import Capability
from llama3jit.compile.units import Unit
from llama3jit.ops.signature import Signature, parse_parameters

# Ops that run on a GPU only where they have a tuned kernel.
TUNED_ALONE = ("attention_chunks", "attention_merge", "matmul_int8", "pack", "quantize")


def symbol(unit: Unit) -> str:
    """The name of a unit's kernel in its cubin."""
    return f"l3j_{unit.stem}"


def portable_unit(op: str, variant: str) -> Unit:
    """The op as it is written, a strided range of items for each GPU thread."""
    return Unit(f"llama3jit.ops.{ops.MODULES[op]}", op, variant)


@cache
def signature_of(op: str) -> Signature:
    """The signature of an op, or of several in one kernel."""
    if op not in kernels_cuda.FUSED:
        return ops.find(op).signature
    found = re.findall(r"(\w+): (\w+(?:\[[^\]]*\])?)", kernels_cuda.FUSED[op])
    return Signature(parse_parameters(op, dict(found)), "")


def tuned_unit(op: str, variant: str, dims: Mapping[str, int], chip: Chip) -> Unit | None:
    """The op's tuned kernel in this variant for these dims (T, N, K, head_dim), if there is one for
    the chip."""
    return _tuned_unit(op, variant, tuple(dims.items()), chip)


@cache
def _tuned_unit(
    op: str, variant: str, dims: tuple[tuple[str, int], ...], chip: Chip
) -> Unit | None:
    tell_kernels(chip)
    found = kernels_cuda.variant_of(op, variant, dict(dims))
    unit = None if found is None else Unit(kernels_cuda.TUNED[op][0], op, found)
    return unit if unit is not None and suits(unit, chip.capability) else None


@dataclass(frozen=True, slots=True)
class Chip:
    """What kernels are chosen and launched by: the compute capability, and how many
    multiprocessors."""

    capability: Capability
    processors: int


def tell_kernels(chip: Chip) -> None:
    """Have what kernels_cuda chooses and launches be for this chip, until it is told of another."""
    kernels_cuda.CAPABILITY[0] = chip.capability
    kernels_cuda.PROCESSORS[0] = chip.processors


def suits(unit: Unit, capability: Capability) -> bool:
    """Whether a unit is for devices of this compute capability."""
    if not is_tuned(unit):
        return True
    if unit.op == "matmul_halves":  # wgmma, which came with 9.0 and went with it
        return capability == (9, 0)
    return capability >= kernels_cuda.LEAST.get(unit.op, (0, 0))


def is_tuned(unit: Unit) -> bool:
    """Whether a unit is a tuned kernel."""
    return unit.module.startswith("kernels_cuda.")


def portable_units() -> list[Unit]:
    """Every op that a plan can have, as it is written, in every variant."""
    return [
        portable_unit(name, variant)
        for name in ops.MODULES
        if name not in TUNED_ALONE
        for variant in ops.find(name).variants
    ]


def every_unit(capability: Capability = (9, 0)) -> list[Unit]:
    """All that a model can need on a GPU: tuned kernels, and the portable ops, which take over
    where a shape or a precision is not the tuned ones'."""
    tuned = [
        Unit(module, name, variant)
        for name, (module, variants) in kernels_cuda.TUNED.items()
        for variant in variants
    ]
    return [*portable_units(), *(unit for unit in tuned if suits(unit, capability))]
