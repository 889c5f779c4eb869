"""A folder of compiled code that is shipped with the package: a shared library for each processor
level, and a manifest.

    manifest.json   {"format", "sources", "tools", "targets": {level: {"file", "sha256", "features",
                    "units": {unit: {"key", "exports": {name: {"symbol", "arguments"}}}}}}, "cuda"}

"sources" is the hash of all kernel sources: while it is theirs, every unit is what the sources say.
If one was edited, a unit is used as long as its own key still fits. "cuda" is the part of GPU
kernels, see llama3jit.compile.cuda.artifact.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llama3jit.compile import sources
from llama3jit.compile.cache import unsealed
from llama3jit.compile.cuda.artifact import MANIFEST, write_images
from llama3jit.compile.cuda.targets import CudaTarget
from llama3jit.compile.targets import Target
from llama3jit.compile.units import Unit, exports, symbols, unit_named
from llama3jit.errors import CompileError
from llama3jit.files.whole import write_whole

FORMAT = 1
SHIPPED = Path(__file__).parents[1] / "_kernels"


@dataclass(frozen=True, slots=True)
class Artifact:
    """The code for one target in a folder: the library's file, and for each unit the key that must
    be its own, None where all sources are those that the file was built from."""

    path: Path
    target: Target
    keys: dict[Unit, str | None]

    def has(self, unit: Unit) -> bool:
        """Whether the unit is there, and is what the sources say."""
        if unit not in self.keys or sources.path_of(unit.module) is None:
            return False
        key = self.keys[unit]
        return key is None or key == sources.source_key(unit, self.target)


def open_artifact(folder: Path, target: Target) -> Artifact:
    """The code for a target, its file checked against the manifest.

    Raises CompileError, which says why, if there is none that can be used.
    """
    manifest = folder / MANIFEST
    try:
        file, sha256, keys = _read_manifest(manifest, target)
    except FileNotFoundError as error:
        raise CompileError(f"there is no {manifest}") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CompileError(f"{manifest} is not a manifest of compiled code: {error!r}") from error
    path = folder / file
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise CompileError(f"{path} cannot be read: {error.strerror}") from error
    if digest != sha256:
        raise CompileError(f"{path} is not the file that its manifest describes")
    return Artifact(path, target, keys)


def _read_manifest(path: Path, target: Target) -> tuple[str, str, dict[Unit, str | None]]:
    """A target's file, its sha256, and its units' keys as in Artifact."""
    manifest = json.loads(path.read_bytes())
    if manifest["format"] != FORMAT:
        raise CompileError(f"{path} has format {manifest['format']}, this version reads {FORMAT}")
    if target.name not in manifest["targets"]:
        found = ", ".join(manifest["targets"]) or "nothing"
        raise CompileError(f"{path} has code for {found}, this processor is {target.name}")
    entry = manifest["targets"][target.name]
    unchanged = manifest["sources"] == sources.everything()
    units = {unit_named(name): unit["key"] for name, unit in entry["units"].items()}
    return entry["file"], entry["sha256"], dict.fromkeys(units) if unchanged else units


def write_artifact(
    folder: Path,
    built: dict[Target, dict[Unit, Path]],
    cuda: dict[CudaTarget, dict[Unit, Path]] | None = None,
) -> Path:
    """Link the objects of each target, put the GPU kernels of each in a file, and describe them;
    returns the manifest's path.

    A file that is there is replaced whole. Raises CompileError without a linker.
    """
    from llama3jit.compile.link import link

    folder.mkdir(parents=True, exist_ok=True)
    targets = {}
    for target, objects in built.items():
        code = link([_object(path) for path in objects.values()])
        file = f"llama3jit-{target.name}.so"
        write_whole(folder / file, code)
        targets[target.name] = {
            "file": file,
            "sha256": hashlib.sha256(code).hexdigest(),
            "features": list(target.features),
            "units": {str(unit): _describe(unit, target) for unit in objects},
        }
    images, described = write_images(cuda) if cuda else ({}, {})
    for file, content in images.items():
        write_whole(folder / file, content)
    manifest = {
        "format": FORMAT,
        "sources": sources.everything(),
        "tools": {name: sources.tool_version(name) for name in sources.SIDES["cpu"].tools},
        "targets": targets,
        "cuda": described,
    }
    text = json.dumps(manifest, indent=1, sort_keys=True)
    write_whole(folder / MANIFEST, text.encode())
    return folder / MANIFEST


def _object(path: Path) -> bytes:
    code = unsealed(path)
    if code is None:
        raise CompileError(f"{path} is cut short")
    return code


def _describe(unit: Unit, target: Target) -> dict[str, Any]:
    names = symbols(unit)
    described = {
        name: {"symbol": names[name], "arguments": ["int64"] * n, "returns": "int64"}
        for name, n in exports(unit).items()
    }
    return {"key": sources.source_key(unit, target), "exports": described}
