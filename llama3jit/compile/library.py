"""Compiled units as addresses in this process, from the first rung that has them: shipped with the
package, kept from an earlier run, or compiled now. numba is imported for the last alone, and in a
process of its own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama3jit.compile import artifact, cache, selftest
from llama3jit.compile.loading import Addresses, load_objects, load_shared
from llama3jit.compile.lock import locked
from llama3jit.compile.targets import Target, host_target
from llama3jit.compile.units import WALKER, Unit
from llama3jit.errors import CompileError, InvalidArgumentError

if TYPE_CHECKING:
    from llama3jit.compile.build import Progress

RUNGS = ("shipped", "cache", "jit")


def rungs() -> tuple[list[str], Path]:
    """The rungs to try, in order, and the folder of shipped code. LLAMA3JIT_KERNELS forces some of
    RUNGS ("cache" or "cache,jit"), or names a folder that alone is used."""
    forced = os.environ.get("LLAMA3JIT_KERNELS", "")
    names = forced.split(",") if forced else RUNGS
    if set(names) <= set(RUNGS):
        return [rung for rung in RUNGS if rung in names], artifact.SHIPPED
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
        if "cache" in order and self._missing(wanted):
            self._take_cached(self._missing(wanted), "cache", cache.kept())
        if "jit" in order and self._missing(wanted):
            self._compile(wanted, progress, again="cache" not in order)
        missing = self._missing(wanted)
        if missing:
            why = "; ".join(f"{rung}: {reason}" for rung, reason in self.reasons.items())
            names = ", ".join(map(str, missing[:3])) + (", ..." if len(missing) > 3 else "")
            todo = "" if "jit" in order else "; unset LLAMA3JIT_KERNELS to compile them"
            raise CompileError(
                f"{len(missing)} kernels ({names}) are not to be had from {', '.join(order)}"
                f"{f' ({why})' if why else ''}{todo}"
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
            handle, addresses = open_shipped(folder, self.target, wanted)
        except CompileError as error:
            self.reasons["shipped"] = str(error)
            return
        self._keep(handle, addresses, "shipped")
        missing = self._missing(wanted)
        if missing:
            self.reasons["shipped"] = f"{len(missing)} kernels were edited or added"

    def _take_cached(self, wanted: list[Unit], rung: str, folder: Path) -> None:
        """What the folder has; code that does not load is as good as none."""
        objects = {}
        for unit in wanted:
            path = cache.find(unit, self.target, folder)
            if path is None:
                self.reasons[rung] = f"no sound file of {unit} for {self.target.name} in {folder}"
            elif path.suffix == ".o":
                objects[unit] = path
            else:
                try:
                    self._keep(*load_shared(path, [unit]), rung)
                except CompileError as error:
                    self.reasons[rung] = str(error)
        if objects:
            self._keep(*load_objects(objects, self.target), rung)

    def _compile(self, wanted: list[Unit], progress: Progress | None, *, again: bool) -> None:
        """Compile what is missing; `again` if a file of the cache is not to be taken for it."""
        from llama3jit.compile.build import build

        folder = cache.folder()

        def found_by_another() -> bool:
            units = self._missing(wanted)
            return not again and all(cache.find(u, self.target, folder) for u in units)

        with locked(folder, found_by_another):
            if not again:
                self._take_cached(self._missing(wanted), "cache", folder)
            files = {u: folder / cache.stem_of(u, self.target) for u in self._missing(wanted)}
            if files:
                why = self.reasons.get("shipped") or self.reasons.get("cache") or ""
                build(files, self.target, progress, why)
                cache.prune(files, self.target, folder)
        self._take_cached(list(files), "jit", folder)

    def _keep(self, handle: Any, addresses: Addresses, rung: str) -> None:
        self._handles.append(handle)
        self._addresses.update(addresses)
        self.rung_of.update(dict.fromkeys(addresses, rung))


def open_shipped(folder: Path, target: Target, wanted: Sequence[Unit]) -> tuple[Any, Addresses]:
    """Those of the units that a folder of shipped code has for a target: what keeps them loaded,
    and their addresses, after a trial.

    Raises CompileError, which says why, if none can be used.
    """
    shipped = artifact.open_artifact(folder, target)
    tried = [unit for unit in (WALKER, selftest.PROBE) if shipped.has(unit)]
    units = [unit for unit in wanted if shipped.has(unit)]
    handle, addresses = load_shared(shipped.path, [*units, *tried])
    selftest.check(addresses, WALKER)
    return handle, {unit: addresses[unit] for unit in units}


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
            found.update(dict.fromkeys(open_shipped(folder, target, units)[1], "shipped"))
        except CompileError as error:
            reasons["shipped"] = str(error)
    for unit in units:
        if unit not in found:
            cached = "cache" in order and cache.find(unit, target) is not None
            found[unit] = "cache" if cached else "jit" if "jit" in order else "none"
    return found, reasons
