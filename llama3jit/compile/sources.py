"""Keys of compiled code: hashes of all that went into it.

A unit's key covers its module's source and every module of ours that it reaches, so that an edited
helper changes the key of all that use it, and nothing else's.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from llama3jit.compile.targets import AnyTarget
from llama3jit.compile.units import Unit


@dataclass(frozen=True, slots=True)
class Side:
    """What code for one kind of device is made of: `kernels` is the package of tuned kernels, which
    a unit may reach beside the ops, `makers` say how code is made and so are part of every unit,
    `tools` are packages."""

    kernels: str
    makers: tuple[str, ...]
    tools: tuple[str, ...]


SIDES = {
    "cpu": Side(
        "kernels_cpu",
        (
            "llama3jit.compile.builder",
            "llama3jit.compile.entry",
            "llama3jit.compile.link",
            "llama3jit.compile.units",
        ),
        ("numba", "llvmlite", "numpy"),
    ),
    "cuda": Side(
        "kernels_cuda",
        (
            "llama3jit.compile.cuda.builder",
            "llama3jit.compile.cuda.entry",
            "llama3jit.compile.cuda.units",
            "llama3jit.compile.entry",
        ),
        ("numba_cuda", "numba", "llvmlite", "numpy", "cuda_toolkit"),
    ),
}
# How a module of ours is named, alone and after "from".
NAMED = {side: re.compile(rf"(?:llama3jit\.ops|{SIDES[side].kernels})\.\w+") for side in SIDES}
FROM_NAMED = {
    side: re.compile(
        rf"from\s+(llama3jit\.ops|{SIDES[side].kernels})\s+import\s+(\([^)]*\)|(?:\\\n|.)*)"
    )
    for side in SIDES
}

ROOT = Path(__file__).parents[2]


def path_of(module: str) -> Path | None:
    """The file of a module of ours, or None if there is none of that name."""
    stem = os.path.join(ROOT, *module.split("."))
    for path in (f"{stem}.py", os.path.join(stem, "__init__.py")):
        if os.path.isfile(path):
            return Path(path)
    return None


@cache
def content(module: str) -> bytes:
    """A module's source, as it was when this process first looked."""
    path = path_of(module)
    return path.read_bytes() if path else b""


@cache
def reached(module: str, side: str) -> frozenset[str]:
    """Modules of ours that this one names: imports, and the "module:name" strings of faces.

    Read off the text: to parse all kernels takes 40 ms, at every start. What is only named in a
    comment counts too, so that nothing is missed.
    """
    text = content(module).decode("utf-8", "replace")
    found = set(NAMED[side].findall(text))
    for package, names in FROM_NAMED[side].findall(text):
        found.update(f"{package}.{name}" for name in re.findall(r"\w+", names))
    return frozenset(name for name in found - {module} if path_of(name))


@cache
def closure(module: str, side: str = "cpu") -> frozenset[str]:
    """The module and all that it reaches."""
    seen: set[str] = set()
    todo = [module, *SIDES[side].makers]
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo.extend(reached(name, side))
    return frozenset(seen)


def _digest(*parts: bytes | str) -> str:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def source_key(unit: Unit, target: AnyTarget) -> str:
    """64 hexadecimal digits for the unit's sources and the target: what shipped code goes by, since
    it was made with its own tools."""
    modules = sorted(closure(unit.module, target.side))
    sources = [part for name in modules for part in (name, content(name))]
    return _digest(str(unit), *target.identity, *sources)


def key(unit: Unit, target: AnyTarget) -> str:
    """The same for code made on this machine, with the versions of the tools."""
    tools = [f"{name}={tool_version(name)}" for name in SIDES[target.side].tools]
    return _digest(source_key(unit, target), sys.implementation.cache_tag or "", *tools)


@cache
def everything(side: str = "cpu") -> str:
    """One hash of all sources that any unit of a side can reach: while it is that of a shipped
    manifest, no unit needs its own looked up."""
    folders = [ROOT / "llama3jit" / "ops", ROOT / SIDES[side].kernels]
    paths = [path for folder in folders for path in sorted(folder.glob("*.py"))]
    paths += [path for name in SIDES[side].makers if (path := path_of(name))]
    return _digest(*(part for p in paths for part in (p.name, p.read_bytes())))


@cache
def tool_version(name: str) -> str:
    """The installed version of a package, read off the folder beside it where that is plain:
    importing importlib.metadata for it would take longer than loading all code."""
    spec = find_spec(name)
    if spec is not None and spec.origin is not None:
        found = list(Path(spec.origin).parents[1].glob(f"{name}-*.dist-info"))
        if len(found) == 1:
            return found[0].name.removesuffix(".dist-info").partition("-")[2]
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return "none"
