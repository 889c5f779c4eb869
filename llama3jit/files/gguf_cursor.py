"""Reads the fields of a GGUF header in order, never past the end of the file.

Counts and lengths are checked against the bytes that remain before anything is read or allocated
for them, in Python integers that do not wrap.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from llama3jit.errors import ModelFormatError

if TYPE_CHECKING:
    from mmap import mmap
    from pathlib import Path

MAX_NAME_BYTES = 65535

_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


def quoted(name: str) -> str:
    """A name from a file, as it stands in a message: quoted, and not too long."""
    return repr(name if len(name) <= 80 else name[:77] + "...")


class Cursor:
    """A position in the mapped file that cannot pass its end."""

    __slots__ = ("data", "path", "pos", "size")

    def __init__(self, data: mmap, path: Path, pos: int = 0) -> None:
        self.data, self.path, self.pos, self.size = data, path, pos, len(data)

    def broken(self, found: str) -> ModelFormatError:
        return ModelFormatError(f"{self.path} is not a sound GGUF file: {found}")

    def take(self, count: int, what: str) -> int:
        """Step over `count` bytes; the position where they start."""
        start = self.pos
        if count > self.size - start:
            raise self.broken(
                f"{what} needs {count} bytes at byte {start}, and {self.size - start} remain "
                "(cut short? download it again)"
            )
        self.pos = start + count
        return start

    def u32(self, what: str) -> int:
        return int(_U32.unpack_from(self.data, self.take(4, what))[0])

    def u64(self, what: str) -> int:
        return int(_U64.unpack_from(self.data, self.take(8, what))[0])

    def count(self, what: str, least_bytes: int, limit: int | None = None) -> int:
        """A count of things that take at least `least_bytes` each."""
        count = self.u64(what)
        if count * least_bytes > self.size - self.pos:
            raise self.broken(
                f"{what} is {count}, more than the {self.size - self.pos} bytes that remain hold "
                "(cut short? download it again)"
            )
        if limit is not None and count > limit:
            raise self.broken(f"{what} is {count}, at most {limit} are read")
        return count

    def name(self, what: str) -> str:
        length = self.u64(f"the length of {what}")
        if not 0 < length <= MAX_NAME_BYTES:
            raise self.broken(f"{what} is {length} bytes long, expected 1 to {MAX_NAME_BYTES}")
        start = self.take(length, what)
        try:
            return self.data[start : self.pos].decode("utf-8")
        except UnicodeDecodeError:
            raise self.broken(f"{what} at byte {start} is not UTF-8") from None
