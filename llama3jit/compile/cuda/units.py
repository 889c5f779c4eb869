"""What a GPU can need, and the names that compiled kernels have."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

import kernels_cuda
from llama3jit import ops
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


def tuned_unit(op: str, variant: str, dims: Mapping[str, int]) -> Unit | None:
    """The op's tuned kernel in this variant for these dims (T, head_dim), if there is one."""
    found = kernels_cuda.variant_of(op, variant, dims)
    return None if found is None else Unit(kernels_cuda.TUNED[op][0], op, found)


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


def every_unit() -> list[Unit]:
    """All that a model can need on a GPU: tuned kernels, and the portable ops, which take over
    where a shape or a precision is not the tuned ones'."""
    tuned = [
        Unit(module, name, variant)
        for name, (module, variants) in kernels_cuda.TUNED.items()
        for variant in variants
    ]
    return [*portable_units(), *tuned]
