"""The processors that code is compiled for."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from functools import cache

V3 = ("avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "popcnt", "sse4.2")
V4 = (*V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")


@dataclass(frozen=True, slots=True)
class Target:
    """A processor level: LLVM's name for it, the features that a host must have, and tuning flags
    that are not features of the processor."""

    name: str
    cpu: str
    features: tuple[str, ...]
    tuning: tuple[str, ...] = ()

    @property
    def flags(self) -> str:
        """LLVM's feature string. Every feature is spelled out: left empty, numba fills in the
        host's."""
        return ",".join([*(f"+{feature}" for feature in self.features), *self.tuning])


# Best first. Levels with "prefer-256-bit" in their tuning would leave half of each register idle.
LEVELS = (
    Target("x86-64-v4-vnni", "x86-64-v4", (*V4, "avx512vnni"), ("-prefer-256-bit",)),
    Target("x86-64-v3-vnni", "x86-64-v3", (*V3, "avxvnni")),
    Target("x86-64-v3", "x86-64-v3", V3),
)


@cache
def host_target() -> Target:
    """The best level that this host has, else the host as LLVM sees it."""
    import llvmlite.binding as llvm

    present = {name for name, there in llvm.get_host_cpu_features().items() if there}
    if platform.machine().lower() in ("x86_64", "amd64"):
        for level in LEVELS:
            if present.issuperset(level.features):
                return level
    cpu = llvm.get_host_cpu_name()
    return Target(f"native-{platform.machine()}-{cpu}", cpu, tuple(sorted(present)))
