"""All units at once: into this machine's cache, or into a folder that is shipped."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from llama3jit.compile import cache
from llama3jit.compile.artifact import write_artifact
from llama3jit.compile.build import Progress, build
from llama3jit.compile.cuda.targets import TARGETS, CudaTarget
from llama3jit.compile.cuda.units import every_unit as cuda_units
from llama3jit.compile.link import need_linker
from llama3jit.compile.targets import LEVELS, AnyTarget, Target, host_target, native_target
from llama3jit.compile.units import Unit, every_unit
from llama3jit.errors import InvalidArgumentError


def targets_by_name(names: Sequence[str]) -> list[AnyTarget]:
    """Targets by their names, "native" for this very processor, "all" for all processor levels,
    "cuda" for all GPUs; without names the one that this host uses. Raises InvalidArgumentError for
    a name that there is not."""
    if not names:
        return [host_target()]
    known: dict[str, AnyTarget] = {target.name: target for target in (*LEVELS, *TARGETS)}
    groups: dict[str, Sequence[AnyTarget]] = {"all": LEVELS, "cuda": TARGETS}
    chosen: list[AnyTarget] = []
    for name in names:
        if name in groups:
            chosen += groups[name]
        elif name == "native":
            chosen.append(native_target())
        elif name in known:
            chosen.append(known[name])
        else:
            raise InvalidArgumentError(
                f"there is no target {name!r}; expected {', '.join(known)}, native, all or cuda"
            )
    return list(dict.fromkeys(chosen))


def units_for(target: AnyTarget) -> list[Unit]:
    """All that a model can need on a target."""
    return cuda_units(target.capability) if isinstance(target, CudaTarget) else every_unit()


def fill_cache(target: AnyTarget, progress: Progress | None = None) -> Path:
    """Compile what the cache lacks of every unit; returns the cache's folder."""
    missing = [unit for unit in units_for(target) if cache.find(unit, target) is None]
    folder = cache.folder()
    if missing:
        build({unit: folder / cache.stem_of(unit, target) for unit in missing}, target, progress)
    return folder


def build_artifact(
    folder: Path, targets: Sequence[AnyTarget], progress: Progress | None = None
) -> Path:
    """Compile every unit for each target and write the folder; returns the manifest's path.

    Raises CompileError where a processor's code needs a linker and there is none, and
    InvalidArgumentError if the folder cannot be made, before anything is compiled.
    """
    if any(isinstance(target, Target) for target in targets):
        need_linker()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidArgumentError(f"{folder} cannot be made a folder: {error.strerror}") from None
    units = {target: units_for(target) for target in targets}
    total, before = sum(map(len, units.values())), 0
    processors: dict[Target, dict[Unit, Path]] = {}
    gpus: dict[CudaTarget, dict[Unit, Path]] = {}
    with tempfile.TemporaryDirectory(prefix="llama3jit-build-") as name:
        for target in targets:

            def report(done: int, _: int, last: str, *, before: int = before) -> None:
                if progress:
                    progress(before + done, total, last)

            before += len(units[target])
            stems = {unit: Path(name) / f"{unit.stem}-{target.name}" for unit in units[target]}
            if isinstance(target, CudaTarget):
                build(stems, target, report)
                suffix = cache.suffixes(target)[0]
                gpus[target] = {u: Path(f"{stem}{suffix}") for u, stem in stems.items()}
            else:
                files = {unit: Path(f"{stem}.o") for unit, stem in stems.items()}
                build(files, target, report)
                processors[target] = files
        return write_artifact(folder, processors, gpus)
