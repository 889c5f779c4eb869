"""The GPUs that kernels are compiled for, and which of them a device takes.

A cubin runs on devices of its own major compute capability and a minor one no lower (CUDA C++
Programming Guide, "Binary Compatibility"); one with architecture-specific instructions ("a") on its
very capability alone. PTX is compiled by the driver, for any device of its capability or a higher
one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

Capability = tuple[int, int]


@dataclass(frozen=True, slots=True)
class CudaTarget:
    """`name` is as the CUDA tools have it: "sm_90a" is a cubin, "compute_80" is PTX."""

    name: str
    capability: Capability

    @property
    def is_ptx(self) -> bool:
        return self.name.startswith("compute_")

    @property
    def is_specific(self) -> bool:
        """Whether it has instructions that later devices lack."""
        return self.name.endswith("a")

    @property
    def side(self) -> str:
        """Which sources and tools the code is made of."""
        return "cuda"

    @property
    def identity(self) -> tuple[str, ...]:
        """What of it is part of every key."""
        return (self.name,)

    @property
    def builder(self) -> list[str]:
        """Module and first arguments of the process that builds for it."""
        return ["llama3jit.compile.cuda.builder", self.name]

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of that process."""
        return {}

    def runs_on(self, capability: Capability) -> bool:
        """Whether a device of this compute capability can run the code."""
        if self.is_ptx:
            return capability >= self.capability
        if self.is_specific:
            return capability == self.capability
        return capability[0] == self.capability[0] and capability[1] >= self.capability[1]


CUBINS = (
    CudaTarget("sm_75", (7, 5)),
    CudaTarget("sm_80", (8, 0)),
    CudaTarget("sm_86", (8, 6)),
    CudaTarget("sm_89", (8, 9)),
    CudaTarget("sm_90a", (9, 0)),
    CudaTarget("sm_100", (10, 0)),
    CudaTarget("sm_120", (12, 0)),
)
PTX = CudaTarget("compute_80", (8, 0))
TARGETS = (*CUBINS, PTX)
OLDEST = CUBINS[0].capability


def targets_for(capability: Capability) -> Iterator[CudaTarget]:
    """What a device can run, best first: the nearest cubin, then PTX."""
    fitting = [target for target in CUBINS if target.runs_on(capability)]
    yield from sorted(fitting, key=lambda target: target.capability, reverse=True)
    if PTX.runs_on(capability):
        yield PTX
