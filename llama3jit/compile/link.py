"""Objects to shared libraries, by the system's C compiler as a linker, at build time alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from llama3jit.errors import CompileError


def linker() -> str | None:
    """The command that links: $CC, else cc, gcc or clang, whichever is there."""
    for name in (os.environ.get("CC"), "cc", "gcc", "clang"):
        if name and (path := shutil.which(name)):
            return path
    return None


def need_linker() -> str:
    """The same, or CompileError if there is none."""
    command = linker()
    if command is None:
        raise CompileError("there is no C compiler to link with (looked for $CC, cc, gcc, clang)")
    return command


def link(objects: Sequence[bytes]) -> bytes:
    """A shared library of these objects, which may call the C library alone.

    Raises CompileError with the linker's own words.
    """
    command = need_linker()
    with tempfile.TemporaryDirectory(prefix="llama3jit-link-") as name:
        folder = Path(name)
        paths = [folder / f"{i}.o" for i in range(len(objects))]
        for path, code in zip(paths, objects, strict=True):
            path.write_bytes(code)
        out = folder / "linked.so"
        flags = ["-shared", "-nostartfiles", "-Wl,--gc-sections", "-Wl,-s", "-Wl,-z,defs"]
        result = subprocess.run(
            [command, *flags, "-Wl,--build-id=none", "-o", out, *paths, "-lm"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if result.returncode:
            raise CompileError(f"{command} cannot link: {result.stderr.strip()}")
        return out.read_bytes()
