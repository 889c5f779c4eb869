"""What is compiled by itself: one op in one variant, or the exports of one module.

A unit's key is the hash of its module's source and of every module of ours that it reaches, with
the versions of the tools and the target. An edited helper changes the key of all that use it.
"""

from __future__ import annotations

import ast
import hashlib
import re
import sys
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from llama3jit.compile.targets import Target

OURS = re.compile(r"(?:llama3jit\.(?:ops|compile)|kernels_cpu)\.\w+")
# How entries and objects are made is part of every unit.
MAKERS = ("llama3jit.compile.entry", "llama3jit.compile.builder")


@dataclass(frozen=True, slots=True)
class Unit:
    """`op` empty means the module's EXPORTS; `variant` is a key of the op's variants."""

    module: str
    op: str = ""
    variant: str = ""

    def __str__(self) -> str:
        return f"{self.module}:{self.op}:{self.variant}"

    @property
    def stem(self) -> str:
        """A name for files and symbols."""
        parts = [self.module.replace(".", "_"), self.op, self.variant]
        return "__".join(part for part in parts if part)


EXPORTS = ("run", "serve", "stop")


def symbols(unit: Unit) -> dict[str, str]:
    """The C symbols of a unit by the names that the loader uses."""
    names = ("entry", "count") if unit.op else EXPORTS
    return {name: f"l3j_{unit.stem}_{name}" for name in names}


@cache
def source_path(module: str) -> Path | None:
    """The file of a module of ours, found without importing it."""
    spec = find_spec(module)
    return Path(spec.origin) if spec and spec.origin else None


@cache
def reached(module: str) -> frozenset[str]:
    """Modules of ours that this one names: imports, and the "module:name" strings of faces."""
    path = source_path(module)
    if path is None:
        return frozenset()
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.update(OURS.findall(node.value) if len(node.value) < 200 else [])
    return frozenset(
        match.group()
        for name in found
        if (match := OURS.match(name)) and source_path(match.group())
    )


@cache
def closure(module: str) -> frozenset[str]:
    """The module and all that it reaches."""
    seen: set[str] = set()
    todo = [module, *MAKERS]
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo.extend(reached(name))
    return frozenset(seen)


def key(unit: Unit, target: Target) -> str:
    """64 hexadecimal digits that change when anything the object depends on does."""
    digest = hashlib.sha256()
    tools = [f"{name}={version(name)}" for name in ("numba", "llvmlite", "numpy")]
    python = f"{sys.implementation.cache_tag}"
    for text in (str(unit), target.cpu, target.flags, python, *tools):
        digest.update(text.encode() + b"\0")
    for name in sorted(closure(unit.module)):
        path = source_path(name)
        if path is not None:
            digest.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
