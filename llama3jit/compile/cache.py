"""Compiled code on disk: a file a unit, named by its key, with a checksum at its end.

Files are written whole and renamed into place, so that two processes may build the same unit; a
file that is cut short or altered is not used but built again. A file that no run has used for a
month makes room when its unit is built anew; any may be deleted at any time.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import time
import warnings
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path

from llama3jit.compile.cuda.targets import CudaTarget
from llama3jit.compile.sources import key
from llama3jit.compile.targets import AnyTarget
from llama3jit.compile.units import Unit
from llama3jit.files.whole import write_whole

DIGEST_BYTES = 32
KEY_DIGITS = 24

# Of a CPU a shared library where the machine that built it had a linker, else an object for LLVM to
# link.
SUFFIXES = {"cpu": (".so", ".o"), "cubin": (".cubin",), "ptx": (".ptx",)}

ROOM_BYTES = 4 * 2**20  # what all units take together, and some more
DAY_S = 24 * 3600
KEPT_S = 30 * DAY_S  # since the last use


class CacheWarning(UserWarning):
    """Compiled code cannot be kept where it belongs."""


@cache
def folder() -> Path:
    """Where compiled code is kept: LLAMA3JIT_CACHE, else the user's cache folder, else a new
    temporary folder, with a warning, if that cannot be written."""
    path = kept()
    problem = _problem(path)
    if problem:
        import shutil
        import tempfile

        warnings.warn(
            f"compiled kernels cannot be kept in {path.parent} ({problem}), so they are built "
            f"for this run alone; set LLAMA3JIT_CACHE to a folder that can be written",
            CacheWarning,
            stacklevel=2,
        )
        path = Path(tempfile.mkdtemp(prefix="llama3jit-"))
        atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def _problem(path: Path) -> str | None:
    """Why code cannot be kept in a folder and loaded from it, in the system's words; makes it."""
    import tempfile

    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(bytes(ROOM_BYTES))
        if hasattr(os, "ST_NOEXEC") and os.statvfs(path).f_flag & os.ST_NOEXEC:
            return "its file system is mounted noexec"
    except OSError as error:
        return error.strerror
    return None


def kept() -> Path:
    """The folder for compiled code that outlives a run, whether it can be written or not."""
    return user_folder() / "kernels"


def user_folder() -> Path:
    """The folder that was chosen for caches, whether it can be written or not."""
    chosen = os.environ.get("LLAMA3JIT_CACHE")
    if chosen:
        return Path(chosen)
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("llama3jit"))


def stem_of(unit: Unit, target: AnyTarget) -> str:
    """A unit's file name for a target, without its suffix."""
    return f"{unit.stem}-{target.name}-{key(unit, target)[:KEY_DIGITS]}"


def suffixes(target: AnyTarget) -> tuple[str, ...]:
    """What a unit's file for a target may end in."""
    if isinstance(target, CudaTarget):
        return SUFFIXES["ptx" if target.is_ptx else "cubin"]
    return SUFFIXES["cpu"]


def find(unit: Unit, target: AnyTarget, folder: Path | None = None) -> Path | None:
    """The unit's file, if there is a sound one, in the user's folder if none is given; notes that
    it was used. Looks without making the folder."""
    for suffix in suffixes(target):
        path = (folder or kept()) / (stem_of(unit, target) + suffix)
        if unsealed(path) is not None:
            with suppress(OSError):
                if path.stat().st_mtime < time.time() - DAY_S:
                    path.touch()
            return path
    return None


def prune(units: Iterable[Unit], target: AnyTarget, folder: Path) -> None:
    """Remove the files of earlier forms of these units that no run has used for a month."""
    for unit in units:
        current = stem_of(unit, target)
        prefix = current[:-KEY_DIGITS]
        form = re.compile(re.escape(prefix) + rf"[0-9a-f]{{{KEY_DIGITS}}}\..*")
        for path in folder.glob(f"{prefix}*"):
            with suppress(OSError):
                is_old = path.stat().st_mtime < time.time() - KEPT_S
                if is_old and form.fullmatch(path.name) and not path.name.startswith(current):
                    path.unlink()


def sealed(code: bytes) -> bytes:
    """Code as it is stored. A loader of shared libraries does not look past their end."""
    return code + hashlib.sha256(code).digest()


def write_sealed(path: Path, code: bytes) -> None:
    """Write code as it is stored."""
    write_whole(path, sealed(code))


def unsealed(path: Path) -> bytes | None:
    """The code in a file, or None if it is not all there."""
    try:
        stored = path.read_bytes()
    except OSError:
        return None
    code, digest = stored[:-DIGEST_BYTES], stored[-DIGEST_BYTES:]
    return code if code and hashlib.sha256(code).digest() == digest else None
