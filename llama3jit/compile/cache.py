"""Compiled objects on disk: a file a unit, named by its key, with a checksum in front.

Files are written whole and renamed into place, so that two processes may build the same unit; a
file that is cut short or altered is not used but built again.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import warnings
from functools import cache
from pathlib import Path

from llama3jit.compile.targets import Target
from llama3jit.compile.units import Unit, key

DIGEST_BYTES = 32


class CacheWarning(UserWarning):
    """Compiled code cannot be kept where it belongs."""


@cache
def folder() -> Path:
    """Where objects are kept: LLAMA3JIT_CACHE, else the user's cache folder, else a new temporary
    folder, with a warning, if that cannot be written."""
    chosen = os.environ.get("LLAMA3JIT_CACHE")
    if not chosen:
        from platformdirs import user_cache_dir

        chosen = user_cache_dir("llama3jit")
    path = Path(chosen) / "kernels"
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


def path_of(unit: Unit, target: Target) -> Path:
    """The file of a unit for a target, whether it is there or not."""
    return folder() / f"{unit.stem}-{target.name}-{key(unit, target)[:24]}.o"


def sealed(code: bytes) -> bytes:
    """An object as it is stored."""
    return hashlib.sha256(code).digest() + code


def read(path: Path) -> bytes | None:
    """The object in a file, or None if there is no sound one."""
    try:
        stored = path.read_bytes()
    except OSError:
        return None
    digest, code = stored[:DIGEST_BYTES], stored[DIGEST_BYTES:]
    return code if code and hashlib.sha256(code).digest() == digest else None
