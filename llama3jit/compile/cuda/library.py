"""The code of kernels for a device, from the first rung that has it: shipped with the package, kept
from an earlier run, or compiled now, in a process of its own that imports numba-cuda."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from llama3jit.compile import cache
from llama3jit.compile.cuda import artifact
from llama3jit.compile.cuda.targets import Capability, CudaTarget, targets_for
from llama3jit.compile.library import rungs
from llama3jit.compile.lock import locked
from llama3jit.compile.units import Unit
from llama3jit.errors import CompileError

if TYPE_CHECKING:
    from llama3jit.compile.build import Progress


@dataclass(slots=True)
class Code:
    """Kernels for one device. `images` has a cubin or PTX for each unit, `is_ptx` says which;
    `rung_of` where each came from, `reasons` why a rung was passed over."""

    target: CudaTarget
    images: dict[Unit, bytes] = field(default_factory=dict)
    is_ptx: dict[Unit, bool] = field(default_factory=dict)
    rung_of: dict[Unit, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    def keep(self, found: dict[Unit, bytes], target: CudaTarget, rung: str) -> None:
        for unit, image in found.items():
            self.images[unit] = image
            self.is_ptx[unit] = target.is_ptx
            self.rung_of[unit] = rung


def find_code(
    units: Sequence[Unit], capability: Capability, progress: Progress | None = None
) -> Code:
    """The code of all units for a device of this compute capability.

    Raises CompileError with the compiler's own words when a unit does not compile, or naming the
    units that are not to be had.
    """
    wanted = list(dict.fromkeys(units))
    order, code = _what_is_there(wanted, capability)
    if "jit" in order and missing(code, wanted):
        _compile(code, missing(code, wanted), progress, again="cache" not in order)
    lacking = missing(code, wanted)
    if lacking:
        why = "; ".join(f"{rung}: {reason}" for rung, reason in code.reasons.items())
        names = ", ".join(map(str, lacking[:3])) + (", ..." if len(lacking) > 3 else "")
        raise CompileError(
            f"{len(lacking)} GPU kernels ({names}) for {code.target.name} are not to be had from "
            f"{', '.join(order)} ({why})"
        )
    return code


def survey(units: Sequence[Unit], capability: Capability) -> tuple[dict[Unit, str], dict[str, str]]:
    """On which rung each unit would be found, and why a rung would be passed over. Compiles
    nothing; what would have to be compiled is on the rung "jit", or on "none"."""
    order, code = _what_is_there(units, capability)
    rest = "jit" if "jit" in order and find_spec("numba_cuda") is not None else "none"
    found = {unit: code.rung_of.get(unit, rest) for unit in units}
    return found, code.reasons if missing(code, units) else {}


def _what_is_there(wanted: Sequence[Unit], capability: Capability) -> tuple[list[str], Code]:
    """The rungs to try, and what shipped code and the cache have."""
    order, folder = rungs()
    targets = list(targets_for(capability))
    code = Code(targets[0])
    if "shipped" in order:
        take_shipped(code, folder, targets, wanted)
    if "cache" in order:
        _take_cached(code, missing(code, wanted), "cache", cache.kept())
    return order, code


def missing(code: Code, wanted: Sequence[Unit]) -> list[Unit]:
    """What of the wanted is not there yet."""
    return [unit for unit in wanted if unit not in code.images]


def take_shipped(
    code: Code, folder: Path, targets: Sequence[CudaTarget], wanted: Sequence[Unit]
) -> None:
    """What a folder of shipped code has, the best of the targets first."""
    for target in targets:
        if not missing(code, wanted):
            return
        try:
            found = artifact.read_images(folder, target, missing(code, wanted))
        except CompileError as error:
            code.reasons.setdefault("shipped", str(error))
            continue
        code.keep(found, target, "shipped")
    lacking = len(missing(code, wanted))
    if lacking and lacking < len(wanted):
        code.reasons["shipped"] = f"{lacking} kernels were edited or added"


def _take_cached(code: Code, wanted: Sequence[Unit], rung: str, folder: Path) -> None:
    found = {}
    for unit in wanted:
        path = cache.find(unit, code.target, folder)
        image = cache.unsealed(path) if path else None
        if image is None:
            code.reasons[rung] = f"no sound file of {unit} for {code.target.name} in {folder}"
        else:
            found[unit] = image
    code.keep(found, code.target, rung)


def _compile(code: Code, wanted: Sequence[Unit], progress: Progress | None, *, again: bool) -> None:
    """Compile what is missing; `again` if a file of the cache is not to be taken for it."""
    from llama3jit.compile.build import build

    if find_spec("numba_cuda") is None:
        code.reasons["jit"] = "numba-cuda is not installed: pip install 'llama3jit[cuda-jit]'"
        return
    folder = cache.folder()

    def found_by_another() -> bool:
        return not again and all(cache.find(unit, code.target, folder) for unit in wanted)

    with locked(folder, found_by_another):
        if not again:
            _take_cached(code, wanted, "cache", folder)
        files = {u: folder / cache.stem_of(u, code.target) for u in missing(code, wanted)}
        if files:
            why = code.reasons.get("shipped") or code.reasons.get("cache") or ""
            build(files, code.target, progress, why)
            cache.prune(files, code.target, folder)
    _take_cached(code, list(files), "jit", folder)
