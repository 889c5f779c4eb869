"""Compiled units as addresses in this process, from the first rung that has them: shipped with the
package, kept from an earlier run, or compiled now. numba is imported for the last alone, and in a
process of its own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llama3jit.compile import cache, selftest
from llama3jit.compile.artifact import SHIPPED, open_artifact
from llama3jit.compile.build import Progress, build
from llama3jit.compile.loading import Addresses, load_objects, load_shared
from llama3jit.compile.targets import host_target
from llama3jit.compile.units import WALKER, Unit
from llama3jit.errors import CompileError, InvalidArgumentError

__all__ = ["Library", "Progress", "rungs"]

RUNGS = ("shipped", "cache", "jit")


def rungs() -> tuple[list[str], Path]:
    """The rungs to try, in order, and the folder of shipped code. LLAMA3JIT_KERNELS forces one of
    RUNGS, or names a folder that alone is used."""
    forced = os.environ.get("LLAMA3JIT_KERNELS", "")
    if not forced:
        return list(RUNGS), SHIPPED
    if forced in RUNGS:
        return [forced], SHIPPED
    if os.sep in forced or Path(forced).is_dir():
        return ["shipped"], Path(forced)
    raise InvalidArgumentError(
        f"LLAMA3JIT_KERNELS is {forced!r}; expected {', '.join(RUNGS)}, or a folder of kernels"
    )


class Library:
    """Loaded units. The code stays in memory as long as this object.

    `rung_of` says where each unit came from, `reasons` why a rung was passed over.
    """

    def __init__(self, units: Sequence[Unit], progress: Progress | None = None) -> None:
        """Load the units, compiling those that no other rung has.

        Raises CompileError with the compiler's own words when a unit does not compile, or naming
        the units that the forced rungs do not have.
        """
        self.target = host_target()
        self.rung_of: dict[Unit, str] = {}
        self.reasons: dict[str, str] = {}
        self._handles: list[Any] = []
        self._addresses: Addresses = {}
        order, folder = rungs()
        wanted = list(dict.fromkeys(units))
        if "shipped" in order:
            self._take_shipped(folder, wanted)
        if "cache" in order:
            self._take_cached(self._missing(wanted), "cache")
        missing = self._missing(wanted)
        if missing and "jit" in order:
            folder = cache.folder()
            build(
                {u: folder / cache.stem_of(u, self.target) for u in missing}, self.target, progress
            )
            self._take_cached(missing, "jit")
            missing = self._missing(wanted)
        if missing:
            why = "; ".join(f"{rung}: {reason}" for rung, reason in self.reasons.items())
            names = ", ".join(map(str, missing[:3])) + (", ..." if len(missing) > 3 else "")
            raise CompileError(
                f"{len(missing)} kernels ({names}) are not to be had from {', '.join(order)}"
                f"{f' ({why})' if why else ''}; unset LLAMA3JIT_KERNELS to compile them"
            )

    @property
    def built(self) -> int:
        """How many units were compiled for this library."""
        return sum(rung == "jit" for rung in self.rung_of.values())

    def address(self, unit: Unit, name: str) -> int:
        """The address of one function of a unit: "entry" and "count" of an op, or an export."""
        return self._addresses[unit][name]

    def _missing(self, wanted: list[Unit]) -> list[Unit]:
        return [unit for unit in wanted if unit not in self._addresses]

    def _take_shipped(self, folder: Path, wanted: list[Unit]) -> None:
        try:
            artifact = open_artifact(folder, self.target)
            units = [unit for unit in wanted if unit in artifact.units]
            handle, addresses = load_shared(artifact.path, units)
            selftest.check(addresses, WALKER)
        except CompileError as error:
            self.reasons["shipped"] = str(error)
            return
        if len(units) < len(wanted):
            self.reasons["shipped"] = f"{len(wanted) - len(units)} kernels were edited or added"
        self._keep(handle, addresses, "shipped")

    def _take_cached(self, wanted: list[Unit], rung: str) -> None:
        objects = {}
        for unit in wanted:
            path = cache.find(unit, self.target)
            if path is None:
                self.reasons["cache"] = f"it has no sound file of {unit} for {self.target.name}"
            elif path.suffix == ".o":
                objects[unit] = path
            else:
                self._keep(*load_shared(path, [unit]), rung)
        if objects:
            self._keep(*load_objects(objects, self.target), rung)

    def _keep(self, handle: Any, addresses: Addresses, rung: str) -> None:
        self._handles.append(handle)
        self._addresses.update(addresses)
        self.rung_of.update(dict.fromkeys(addresses, rung))


def survey(units: Sequence[Unit]) -> tuple[dict[Unit, str], dict[str, str]]:
    """On which rung each unit would be found, and why a rung would be passed over. Compiles
    nothing; what would have to be compiled is on the rung "jit", or on "none" where that is not
    allowed."""
    target = host_target()
    order, folder = rungs()
    reasons: dict[str, str] = {}
    found: dict[Unit, str] = {}
    if "shipped" in order:
        try:
            artifact = open_artifact(folder, target)
            shipped = [unit for unit in units if unit in artifact.units]
            _, addresses = load_shared(artifact.path, shipped)
            selftest.check(addresses, WALKER)
            found.update(dict.fromkeys(shipped, "shipped"))
        except CompileError as error:
            reasons["shipped"] = str(error)
    for unit in units:
        if unit not in found:
            cached = "cache" in order and cache.find(unit, target) is not None
            found[unit] = "cache" if cached else "jit" if "jit" in order else "none"
    return found, reasons
