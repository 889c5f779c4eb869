"""What this machine is, what the package will use of it, and what would stop a load."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from llama3jit.installed import extras, packages

Facts = dict[str, Any]


def examine() -> dict[str, Any]:
    """Facts by subject, in the order in which people want them; every value can be printed or made
    JSON of. Loads the compiled kernels, compiles and writes nothing.

    "problems" is a list of what would stop a load, "notes" of what may surprise.
    """
    facts = {
        "package": packages(),
        "processor": _processor(),
        "threads": _threads(),
        "kernels": _kernels(),
        "memory": _memory(),
        "folders": _folders(),
        "devices": _devices(),
        "extras": extras(),
        "models": _models(),
        "settings": _settings(),
    }
    return {
        "used": _used(facts),
        **facts,
        "problems": _problems(facts),
        "notes": _notes(facts),
    }


def _used(facts: dict[str, Facts]) -> str:
    """What a load without options takes."""
    kernels = {k: n for k, n in facts["kernels"].items() if isinstance(n, int)}
    words = {
        "shipped": "shipped",
        "cache": "kept from an earlier run",
        "jit": "compiled at the next load, once",
        "none": "not to be had",
    }
    code = ", ".join(f"{count} {words.get(rung, rung)}" for rung, count in kernels.items())
    if facts["devices"]["auto"] == "cuda":
        return f"the GPU: {facts['devices']['cuda']}"
    return (
        f"the CPU: {facts['threads']['used']} threads, {facts['processor']['level']}, kernels: "
        f"{code or facts['kernels'].get('problem', 'none')}"
    )


def _problems(facts: dict[str, Facts]) -> list[str]:
    """What would stop a load, each with what to do."""
    found = [
        f"the package {name} is missing: pip install {name}"
        for name, version in facts["package"].items()
        if version == "none"
    ]
    kernels = facts["kernels"]
    if "problem" in kernels:
        found.append(str(kernels["problem"]))
    if lost := kernels.get("none", 0):
        why = "; ".join(str(why) for name, why in kernels.items() if name.startswith("not "))
        found.append(
            f"{lost} kernels are not there, and LLAMA3JIT_KERNELS forbids to compile them"
            f"{f' ({why})' if why else ''}; unset it"
        )
    models = facts["models"].items()
    return found + [f"{name}: {state}" for name, state in models if not _is_size(state)]


def _notes(facts: dict[str, Facts]) -> list[str]:
    found = []
    for name, folder in facts["folders"].items():
        if folder["writable"] != "yes":
            todo = {
                "models": "nothing can be pulled; set LLAMA3JIT_MODELS",
                "kernels": "kernels are compiled for each run anew; set LLAMA3JIT_CACHE",
            }[name]
            found.append(f"{folder['path']} cannot be written ({folder['writable']}): {todo}")
    if not facts["models"]:
        from llama3jit.files.catalogue import DEFAULT_MODEL

        found.append(f"no model is here: llama3jit pull {DEFAULT_MODEL}")
    return found


def _processor() -> Facts:
    from llama3jit.compile.targets import LEVELS, host_features, host_target, usable_features

    shown, usable = host_features(), usable_features()
    better = []
    for level in LEVELS:
        if level.name == host_target().name:
            break
        missing = [feature for feature in level.features if feature not in usable]
        better.append(f"{level.name} lacks {', '.join(missing)}")
    known = [feature for feature in LEVELS[0].features if feature in usable]
    facts = {
        "machine": f"{platform.system()} {platform.machine()}",
        "model": _model_name(),
        "features": [*known, *sorted(usable.difference(known))] if len(usable) < 40 else known,
        "level": host_target().name,
        "why": "; ".join(better) or "it is the best that there is",
    }
    if unused := sorted(shown - usable):
        facts["unused"] = f"{', '.join(unused)}: shown by the processor, but a trial of them failed"
    return facts


def _model_name() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def _threads() -> Facts:
    from llama3jit.devices.cgroup import cpu_quota
    from llama3jit.devices.cpu.threads import physical_cores, thread_count, usable_cores

    used, quota = thread_count(None), cpu_quota()
    limits = {
        "affinity mask": usable_cores(),
        "physical cores": physical_cores(),
        "control group's quota": quota or "no limit",
    }
    least = min((limit for limit in limits.values() if isinstance(limit, int | float)), default=1)
    names = [name for name, limit in limits.items() if limit == least]
    return {"used": used, "why": f"the least of these: {names[0]}", **limits}


def _kernels() -> Facts:
    from collections import Counter

    from llama3jit.compile.library import survey
    from llama3jit.compile.units import every_unit
    from llama3jit.errors import Llama3JitError

    try:
        rung_of, reasons = survey(every_unit())
    except Llama3JitError as error:
        return {"problem": str(error)}
    return {**Counter(rung_of.values()), **{f"not {rung}": why for rung, why in reasons.items()}}


def _memory() -> Facts:
    import psutil

    from llama3jit.devices.cgroup import memory_left

    left = memory_left()
    mib = 2**20
    return {
        "machine": f"{psutil.virtual_memory().total // mib} MiB",
        "available": f"{psutil.virtual_memory().available // mib} MiB",
        "left by the control group": "no limit" if left is None else f"{left // mib} MiB",
    }


def _folders() -> Facts:
    from llama3jit.compile.cache import kept
    from llama3jit.files.store import default_store

    store = default_store()
    return {"models": _folder(store.root), "kernels": _folder(kept())}


def _folder(path: Path) -> Facts:
    """What is in a folder, and whether it can be written; nothing is made to find out."""
    import shutil

    sizes = []
    if path.is_dir():
        sizes = [file.stat().st_size for file in path.iterdir() if file.is_file()]
    there = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    writable = "yes" if there.is_dir() and os.access(there, os.W_OK | os.X_OK) else "no permission"
    if not there.is_dir():
        writable = f"{there} is a file"
    return {
        "path": str(path),
        "files": len(sizes),
        "size": f"{sum(sizes) / 1e6:.1f} MB",
        "free": f"{shutil.disk_usage(there).free / 1e9:.1f} GB",
        "writable": writable,
    }


def _models() -> Facts:
    """The pulled models: their sizes, or why one will not load."""
    from llama3jit.errors import Llama3JitError
    from llama3jit.files.gguf import open_gguf
    from llama3jit.files.store import default_store
    from llama3jit.model.config import read_config

    found = {}
    for model in default_store().models():
        try:
            with open_gguf(Path(model.file)) as gguf:
                read_config(gguf)
        except (Llama3JitError, OSError) as error:
            found[model.name] = f"does not load: {error}"
        else:
            found[model.name] = f"{model.size / 1e6:.1f} MB"
    return found


def _is_size(state: object) -> bool:
    return not str(state).startswith("does not load")


def _settings() -> Facts:
    """The variables that are set and change what is done."""
    names = ("LLAMA3JIT_", "HF_HUB_OFFLINE", "HF_ENDPOINT", "CUDA_VISIBLE_DEVICES")
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(names)}


def _devices() -> Facts:
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
