"""All units at once: into this machine's cache, or into a folder that is shipped."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from llama3jit.compile import cache
from llama3jit.compile.artifact import write_artifact
from llama3jit.compile.build import Progress, build
from llama3jit.compile.link import need_linker
from llama3jit.compile.targets import LEVELS, Target, host_target, native_target
from llama3jit.compile.units import Unit, every_unit
from llama3jit.errors import InvalidArgumentError


def targets_by_name(names: Sequence[str]) -> list[Target]:
    """Targets by their names, "native" for this very processor, "all" for all levels; without
    names the one that this host uses. Raises InvalidArgumentError for a name that there is not."""
    if not names:
        return [host_target()]
    known = {level.name: level for level in LEVELS}
    chosen: list[Target] = []
    for name in names:
        if name == "all":
            chosen += LEVELS
        elif name == "native":
            chosen.append(native_target())
        elif name in known:
            chosen.append(known[name])
        else:
            raise InvalidArgumentError(
                f"there is no target {name!r}; expected {', '.join(known)}, native or all"
            )
    return list(dict.fromkeys(chosen))


def fill_cache(target: Target, progress: Progress | None = None) -> Path:
    """Compile what the cache lacks of every unit; returns the cache's folder."""
    missing = [unit for unit in every_unit() if cache.find(unit, target) is None]
    folder = cache.folder()
    if missing:
        build({unit: folder / cache.stem_of(unit, target) for unit in missing}, target, progress)
    return folder


def build_artifact(
    folder: Path, targets: Sequence[Target], progress: Progress | None = None
) -> Path:
    """Compile every unit for each target and write the folder; returns the manifest's path.

    Raises CompileError without a linker, and InvalidArgumentError if the folder cannot be made,
    before anything is compiled.
    """
    need_linker()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidArgumentError(f"{folder} cannot be made a folder: {error.strerror}") from None
    units = every_unit()
    built: dict[Target, dict[Unit, Path]] = {}
    with tempfile.TemporaryDirectory(prefix="llama3jit-build-") as name:
        for i, target in enumerate(targets):

            def report(done: int, total: int, last: str, *, before: int = i * len(units)) -> None:
                if progress:
                    progress(before + done, len(units) * len(targets), last)

            files = {unit: Path(name) / f"{unit.stem}-{target.name}.o" for unit in units}
            build(files, target, report)
            built[target] = files
        return write_artifact(folder, built)
