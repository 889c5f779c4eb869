"""What this machine is, and what the package will use of it."""

from __future__ import annotations

import platform
import sys
from typing import Any


def examine() -> dict[str, Any]:
    """Facts by subject, in the order in which people want them; every value can be printed or made
    JSON of. Loads the compiled kernels, compiles nothing."""
    return {
        "package": _package(),
        "processor": _processor(),
        "threads": _threads(),
        "kernels": _kernels(),
        "memory": _memory(),
        "folders": _folders(),
        "devices": _devices(),
    }


def _package() -> dict[str, Any]:
    from llama3jit.compile.sources import tool_version
    from llama3jit.version import __version__

    tools = {name: tool_version(name) for name in ("numpy", "numba", "llvmlite", "tokenizers")}
    return {"llama3jit": __version__, "python": sys.version.split()[0], **tools}


def _processor() -> dict[str, Any]:
    from llama3jit.compile.targets import LEVELS, host_target, usable_features

    present = usable_features()
    return {
        "machine": f"{platform.system()} {platform.machine()}",
        "model": _model_name(),
        "level": host_target().name,
        "lacks": {
            level.name: [feature for feature in level.features if feature not in present]
            for level in LEVELS
            if not present.issuperset(level.features)
        },
    }


def _model_name() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def _threads() -> dict[str, Any]:
    from llama3jit.devices.cgroup import cpu_quota
    from llama3jit.devices.cpu.threads import physical_cores, thread_count, usable_cores

    return {
        "used": thread_count(None),
        "cores that the affinity mask allows": usable_cores(),
        "physical cores": physical_cores(),
        "cores' worth of time that the control group allows": cpu_quota() or "no limit",
    }


def _kernels() -> dict[str, Any]:
    from collections import Counter

    from llama3jit.compile.library import survey
    from llama3jit.compile.units import every_unit
    from llama3jit.errors import Llama3JitError

    try:
        rung_of, reasons = survey(every_unit())
    except Llama3JitError as error:
        return {"problem": str(error)}
    return {**Counter(rung_of.values()), **{f"not {rung}": why for rung, why in reasons.items()}}


def _memory() -> dict[str, Any]:
    import psutil

    from llama3jit.devices.cgroup import memory_left

    left = memory_left()
    mib = 2**20
    return {
        "machine": f"{psutil.virtual_memory().total // mib} MiB",
        "available": f"{psutil.virtual_memory().available // mib} MiB",
        "left by the control group": "no limit" if left is None else f"{left // mib} MiB",
    }


def _folders() -> dict[str, Any]:
    from llama3jit.compile.cache import user_folder
    from llama3jit.files.store import default_store

    return {"models": str(default_store().root), "kernels": str(user_folder() / "kernels")}


def _devices() -> dict[str, Any]:
    from llama3jit.devices.cuda.probe import find_card
    from llama3jit.errors import DeviceError

    found = {"auto": "cpu", "cpu": "ready", "reference": "ready"}
    try:
        card = find_card()
    except DeviceError as error:
        return {**found, "cuda": str(error)}
    major, minor = card.capability
    described = (
        f"{card.name}, compute capability {major}.{minor}, {card.memory // 2**20} MiB, driver for "
        f"CUDA {card.driver}"
    )
    return {
        **found,
        "auto": "cuda",
        "cuda": described,
        "GPU kernels": _gpu_kernels(card.capability),
    }


def _gpu_kernels(capability: tuple[int, int]) -> dict[str, Any]:
    """How many GPU kernels each rung has."""
    from collections import Counter

    from llama3jit.compile.cuda.library import survey
    from llama3jit.compile.cuda.units import every_unit
    from llama3jit.errors import Llama3JitError

    try:
        rung_of, reasons = survey(every_unit(capability), capability)
    except Llama3JitError as error:
        return {"problem": str(error)}
    return {**Counter(rung_of.values()), **{f"not {rung}": why for rung, why in reasons.items()}}
