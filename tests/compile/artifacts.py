"""Small folders of shipped code: the walker and three ops, for this host or for a level."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llama3jit.compile.artifact import MANIFEST, write_artifact
from llama3jit.compile.build import build
from llama3jit.compile.targets import Target
from llama3jit.compile.units import WALKER, Unit

ADD = Unit("llama3jit.ops.add", "add")
ADD_BIAS = Unit("llama3jit.ops.add", "add_bias")
SWIGLU = Unit("llama3jit.ops.swiglu", "swiglu")
UNITS = (WALKER, ADD, ADD_BIAS, SWIGLU)


def make_artifact(folder: Path, target: Target, units: tuple[Unit, ...] = UNITS) -> Path:
    """Build the units and write the folder."""
    objects = folder.with_name(folder.name + "-objects")
    objects.mkdir(parents=True)
    files = {unit: objects / f"{unit.stem}.o" for unit in units}
    build(files, target)
    write_artifact(folder, {target: files})
    return folder


def edit_manifest(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Rewrite the manifest after `change`, which may give another one."""
    path = folder / MANIFEST
    manifest = json.loads(path.read_text())
    changed = change(manifest)
    path.write_text(json.dumps(manifest if changed is None else changed))
