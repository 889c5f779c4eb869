"""How many threads to use: no more than the affinity mask, the cgroup quota or the physical cores
allow."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from llama3jit.devices.cgroup import cpu_quota
from llama3jit.errors import InvalidArgumentError

# Threads that share a processor wait for each other at every step.
MOST_PER_PROCESSOR = 4


def thread_count(asked: int | None) -> int:
    """The number asked for, else the most that help. Raises InvalidArgumentError below 1, and above
    four for each processor that this process may use."""
    if asked is not None:
        usable = usable_cores()
        if not 1 <= asked <= MOST_PER_PROCESSOR * usable:
            raise InvalidArgumentError(
                f"threads is {asked}; expected 1 to {MOST_PER_PROCESSOR * usable}, as this process "
                f"may use {usable} processor{'s' if usable > 1 else ''}; more than one each slows "
                "the work down"
            )
        return asked
    limits = [usable_cores(), physical_cores()]
    quota = cpu_quota()
    if quota is not None:
        limits.append(int(quota))
    return max(1, min(limits))


def usable_cores() -> int:
    """Logical processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def physical_cores(topology: Path = Path("/sys/devices/system/cpu")) -> int:
    """Cores of the machine; two hardware threads of one count once. From sysfs where there is one:
    to import psutil takes 15 ms."""
    siblings = set()
    with suppress(OSError):
        for path in topology.glob("cpu[0-9]*/topology/thread_siblings_list"):
            siblings.add(path.read_text())
    if siblings:
        return len(siblings)
    import psutil

    return psutil.cpu_count(logical=False) or usable_cores()
