"""Compiled code on disk: a file a unit, named by its key, with a checksum at its end.

Files are written whole and renamed into place, so that two processes may build the same unit; a
file that is cut short or altered is not used but built again. What is not used for a long time may
be deleted at any time.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import warnings
from functools import cache
from pathlib import Path

from llama3jit.compile.sources import key
from llama3jit.compile.targets import Target
from llama3jit.compile.units import Unit

DIGEST_BYTES = 32

# A shared library where the machine that built it had a linker, else an object for LLVM to link.
SUFFIXES = (".so", ".o")


class CacheWarning(UserWarning):
    """Compiled code cannot be kept where it belongs."""


@cache
def folder() -> Path:
    """Where compiled code is kept: LLAMA3JIT_CACHE, else the user's cache folder, else a new
    temporary folder, with a warning, if that cannot be written."""
    chosen = user_folder()
    path = chosen / "kernels"
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        path = Path(tempfile.mkdtemp(prefix="llama3jit-"))
        warnings.warn(
            f"compiled kernels cannot be kept in {chosen} ({error.strerror}), so they are built "
            f"for this run alone; set LLAMA3JIT_CACHE to a folder that can be written",
            CacheWarning,
            stacklevel=2,
        )
    return path


def user_folder() -> Path:
    """The folder that was chosen for caches, whether it can be written or not."""
    chosen = os.environ.get("LLAMA3JIT_CACHE")
    if chosen:
        return Path(chosen)
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("llama3jit"))


def stem_of(unit: Unit, target: Target) -> str:
    """A unit's file name for a target, without its suffix."""
    return f"{unit.stem}-{target.name}-{key(unit, target)[:24]}"


def find(unit: Unit, target: Target) -> Path | None:
    """The unit's file, if there is a sound one. Looks without making the folder."""
    for suffix in SUFFIXES:
        path = user_folder() / "kernels" / (stem_of(unit, target) + suffix)
        if unsealed(path) is not None:
            return path
    return None


def sealed(code: bytes) -> bytes:
    """Code as it is stored. A loader of shared libraries does not look past their end."""
    return code + hashlib.sha256(code).digest()


def unsealed(path: Path) -> bytes | None:
    """The code in a file, or None if it is not all there."""
    try:
        stored = path.read_bytes()
    except OSError:
        return None
    code, digest = stored[:-DIGEST_BYTES], stored[-DIGEST_BYTES:]
    return code if code and hashlib.sha256(code).digest() == digest else None
