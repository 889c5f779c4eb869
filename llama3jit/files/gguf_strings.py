"""Arrays of strings of a GGUF file: walked once, decoded one by one or all at a time."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, overload

if TYPE_CHECKING:
    from mmap import mmap

    import numpy as np
    from numpy.typing import NDArray

    from llama3jit.files.gguf_cursor import Cursor

_U64 = struct.Struct("<Q")


def walk_strings(cursor: Cursor, count: int, what: str) -> array[int]:
    """Where each string's length field stands, and the end: one pass, 80 ns a string."""
    starts, data, pos, read = array("Q"), cursor.data, cursor.pos, _U64.unpack_from
    append = starts.append
    try:
        for _ in range(count):
            append(pos)
            pos += 8 + read(data, pos)[0]
    except (struct.error, OverflowError, IndexError):
        pos = cursor.size + 1
    if pos > cursor.size:
        raise cursor.broken(
            f"string {len(starts) - 1} of {what} runs past the end (cut short? download it again)"
        )
    append(pos)
    cursor.pos = pos
    return starts


class Strings(Sequence[str]):
    """An array of strings, each decoded when it is asked for; it outlives the file.

    String i is `data[offsets[i]:][:lengths[i]]`; `data` are bytes, the array as it lies in the
    file. Bytes that are not UTF-8 become U+FFFD.
    """

    def __init__(self, data: mmap, starts: array[int]) -> None:
        self.data = data[starts[0] : starts[-1]]
        self._starts = starts

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Offsets into `data`, [n]."""
        return self._bounds[:-1] + 8

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Lengths in bytes, [n]."""
        import numpy as np

        return np.diff(self._bounds) - 8

    @property
    def _bounds(self) -> NDArray[np.int64]:
        import numpy as np

        return np.frombuffer(self._starts, np.uint64).astype(np.int64) - self._starts[0]

    def raw(self, index: int) -> bytes:
        """The bytes of one string; `index` from 0."""
        first = self._starts[0]
        return self.data[self._starts[index] - first + 8 : self._starts[index + 1] - first]

    def __len__(self) -> int:
        return len(self._starts) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        at = range(len(self))[index]
        if isinstance(at, range):
            return [self.raw(i).decode("utf-8", "replace") for i in at]
        return self.raw(at).decode("utf-8", "replace")

    def __iter__(self) -> Iterator[str]:
        return iter(self.decoded())

    def decoded(self) -> list[str]:
        """All strings, by one UTF-8 decode and one split for all of them.

        Every length field becomes one NUL. (Twice as fast as a decode a string: 40 ms for the
        tokens and merges of Llama 3.) Strings that hold a NUL themselves take the slow way.
        """
        import numpy as np

        if not len(self):
            return []
        raw = np.frombuffer(self.data, np.uint8).copy()
        fields = self._bounds[:-1]
        keep = np.ones(raw.size, bool)
        for byte in range(7):
            keep[fields + byte] = False
        raw[fields + 7] = 0
        strings = raw[keep].tobytes()[1:].decode("utf-8", "replace").split("\0")
        if len(strings) == len(self):
            return strings
        data, bounds = self.data, self._bounds.tolist()
        return [
            data[start + 8 : stop].decode("utf-8", "replace") for start, stop in pairwise(bounds)
        ]
