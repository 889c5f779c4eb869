"""GPU kernels: PTX intrinsics, for the portable ops and for tuned ones.

A tuned kernel is a plain function that numba-cuda compiles. It takes the op's parameters in their
order, an array as its address (int64), then each named dim of the op's annotations in order of
first use (int64). A module with kernels has `kernel(op, variant)`, which makes the function, and
`launch(op, variant, dims)`, which says how to launch it; nothing is imported before it is needed.

A variant is a format or a dtype, and after a colon what the kernel is made for, as a number of
tokens: "q4_0:8". `variant_of` chooses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True, slots=True)
class Launch:
    """Blocks and threads of a launch in x, y and z, and bytes of dynamic shared memory; more than
    48 KB of it have to be allowed on the kernel first."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int = 0


# Op -> the module that holds its tuned kernel, and the variants that it has there.
TUNED: dict[str, tuple[str, tuple[str, ...]]] = {}
# The parameters of kernels that are no op's: what each makes, and then what of.
FUSED: dict[str, str] = {}
# The parameters of kernels that are no op's: what each makes, and then what of.
FUSED: dict[str, str] = {}


def kernel(op: str, variant: str) -> Any:
    """The kernel of an op as a plain function. Imports numba-cuda."""
    return import_module(TUNED[op][0]).kernel(op, variant)


def launch(op: str, variant: str, dims: Mapping[str, int]) -> Launch:
    """How to launch it when the op's named dims are these."""
    found: Launch = import_module(TUNED[op][0]).launch(op, variant, dims)
    return found


def variant_of(op: str, variant: str, dims: Mapping[str, int]) -> str | None:
    """The tuned variant of a plan's variant for these dims; None if there is none."""
    if op not in TUNED:
        return None
    variants = TUNED[op][1]
    if variant in variants:
        return variant
    return None
