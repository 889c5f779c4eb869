"""The processors that code is compiled for, and the one that this is."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from llama3jit.compile.cuda.targets import CudaTarget

V3 = ("avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "popcnt", "sse4.2")
V4 = (*V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")

# LLVM's names where they are not the Linux kernel's.
KERNEL_NAMES = {
    "amx-int8": "amx_int8",
    "amx-tile": "amx_tile",
    "avx512vnni": "avx512_vnni",
    "avxvnni": "avx_vnni",
    "bmi": "bmi1",
    "lzcnt": "abm",
    "sse4.2": "sse4_2",
}


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

    @property
    def side(self) -> str:
        """Which sources and tools the code is made of."""
        return "cpu"

    @property
    def identity(self) -> tuple[str, ...]:
        """What of it is part of every key."""
        return (self.cpu, self.flags)

    @property
    def builder(self) -> list[str]:
        """Module and first arguments of the process that builds for it."""
        return ["llama3jit.compile.builder"]

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of that process."""
        return {"NUMBA_CPU_NAME": self.cpu, "NUMBA_CPU_FEATURES": self.flags}


AnyTarget = Target | CudaTarget


# Best first. A level with "prefer-256-bit" in its tuning would leave half of each register idle.
LEVELS = (
    Target(
        "x86-64-v4-amx",
        "x86-64-v4",
        (*V4, "avx512vnni", "amx-tile", "amx-int8"),
        ("-prefer-256-bit",),
    ),
    Target("x86-64-v4-vnni", "x86-64-v4", (*V4, "avx512vnni"), ("-prefer-256-bit",)),
    Target("x86-64-v3-vnni", "x86-64-v3", (*V3, "avxvnni")),
    Target("x86-64-v3", "x86-64-v3", V3),
)


def is_x86() -> bool:
    """Whether this machine is an x86-64 one."""
    return platform.machine().lower() in ("x86_64", "amd64")


@cache
def host_target() -> Target:
    """The best level that this host has, else the host as LLVM sees it."""
    return best_level(usable_features()) or native_target()


def usable_features() -> frozenset[str]:
    """Features of this processor, without tile registers where they do not work."""
    from llama3jit.compile import tiles

    present = host_features()
    if present >= tiles.FEATURES and not tiles.usable():
        present -= tiles.FEATURES
    return present


def best_level(present: frozenset[str]) -> Target | None:
    """The first level whose features are all present; LLVM's names."""
    if is_x86():
        for level in LEVELS:
            if present.issuperset(level.features):
                return level
    return None


def host_features(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Features of this processor that the system lets programs use, by LLVM's names.

    On Linux the kernel has asked the processor already (cpuid), and leaves out what it does not
    save between tasks (xgetbv); elsewhere LLVM asks.
    """
    flags = cpu_flags(cpuinfo) if is_x86() else frozenset()
    if not flags:
        return _llvm_features()
    known = {feature for level in LEVELS for feature in level.features}
    return frozenset(name for name in known if KERNEL_NAMES.get(name, name) in flags)


def cpu_flags(cpuinfo: Path) -> frozenset[str]:
    """The "flags" of the first processor in /proc/cpuinfo; nothing if it cannot be read."""
    try:
        for line in cpuinfo.read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "flags":
                return frozenset(value.split())
    except OSError:
        pass
    return frozenset()


def _llvm_features() -> frozenset[str]:
    import llvmlite.binding as llvm

    return frozenset(name for name, there in llvm.get_host_cpu_features().items() if there)


def native_target() -> Target:
    """This very processor, for machines that no level fits. Never shipped."""
    import llvmlite.binding as llvm

    cpu = llvm.get_host_cpu_name()
    name = f"native-{platform.machine().lower()}-{cpu}"
    # Tile registers are there for those who ask (llama3jit.compile.tiles), and nobody did.
    present = sorted(name for name in _llvm_features() if not name.startswith("amx"))
    return Target(name, cpu, tuple(present))
