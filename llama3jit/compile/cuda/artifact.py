"""GPU kernels in a folder that is shipped: for each target one file of all images, one after the
other, and a part of the manifest.

    "cuda": {"sources", "tools", "targets": {name: {"file", "sha256",
             "units": {unit: {"key", "symbol", "begin", "bytes"}}}}}

See llama3jit.compile.artifact for the rest of the manifest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llama3jit.compile import sources
from llama3jit.compile.cache import unsealed
from llama3jit.compile.cuda.targets import CudaTarget
from llama3jit.compile.cuda.units import symbol
from llama3jit.compile.units import Unit
from llama3jit.errors import CompileError

MANIFEST = "manifest.json"


def write_images(
    built: Mapping[CudaTarget, Mapping[Unit, Path]],
) -> tuple[dict[str, bytes], dict[str, Any]]:
    """The files of each target, by name, and the manifest's part. Raises CompileError for an image
    that is not whole."""
    files, targets = {}, {}
    for target, paths in built.items():
        content, units = b"", {}
        for unit, path in paths.items():
            image = unsealed(path)
            if image is None:
                raise CompileError(f"{path} is cut short")
            units[str(unit)] = {
                "key": sources.source_key(unit, target),
                "symbol": symbol(unit),
                "begin": len(content),
                "bytes": len(image),
            }
            content += image
        file = f"llama3jit-{target.name}.{'ptx' if target.is_ptx else 'cubins'}"
        files[file] = content
        digest = hashlib.sha256(content).hexdigest()
        targets[target.name] = {"file": file, "sha256": digest, "units": units}
    tools = {name: sources.tool_version(name) for name in sources.SIDES["cuda"].tools}
    return files, {"sources": sources.everything("cuda"), "tools": tools, "targets": targets}


def read_images(folder: Path, target: CudaTarget, wanted: Sequence[Unit]) -> dict[Unit, bytes]:
    """Those of the units that the folder has for a target and that are what the sources say.

    Raises CompileError, which says why, if there are none for the target.
    """
    manifest = folder / MANIFEST
    try:
        part = json.loads(manifest.read_bytes())["cuda"]
        if not part or target.name not in part["targets"]:
            raise CompileError(f"{manifest} has no GPU kernels for {target.name}")
        entry = part["targets"][target.name]
        path = folder / entry["file"]
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != entry["sha256"]:
            raise CompileError(f"{path} is not the file that its manifest describes")
        unchanged = part["sources"] == sources.everything("cuda")
        found = {}
        for unit in wanted:
            described = entry["units"].get(str(unit))
            if described is None or sources.path_of(unit.module) is None:
                continue
            if unchanged or described["key"] == sources.source_key(unit, target):
                begin = described["begin"]
                found[unit] = content[begin : begin + described["bytes"]]
        return found
    except FileNotFoundError as error:
        raise CompileError(f"there is no {error.filename}") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CompileError(f"{manifest} is not a manifest of compiled code: {error!r}") from error
