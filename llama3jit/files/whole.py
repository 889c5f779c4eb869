"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def write_whole(path: Path, content: bytes | Iterable[bytes], *, private: bool = False) -> None:
    """Write a file beside its place, and rename it there. What is `private` is readable for its
    owner alone, and on the disk before it has its name."""
    import tempfile

    parts = (content,) if isinstance(content, bytes) else content
    handle, fresh = tempfile.mkstemp(prefix=f"{path.name}.", suffix=".new", dir=path.parent)
    try:
        with open(handle, "wb") as file:
            for part in parts:
                file.write(part)
            if private:
                file.flush()
                os.fsync(file.fileno())
        if not private:
            os.chmod(fresh, 0o644)
        os.replace(fresh, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(fresh)
