"""Metadata values of a GGUF file: where they lie, and how they become Python objects.

The header is walked once and only spans are kept; a value is decoded when it is first asked for.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama3jit.errors import InvalidArgumentError
from llama3jit.files.gguf_cursor import Cursor
from llama3jit.files.gguf_strings import Strings, walk_strings

if TYPE_CHECKING:
    from mmap import mmap

    import numpy as np
    from numpy.typing import NDArray

STRING, ARRAY = 8, 9
MAX_ARRAY_DEPTH = 4

# Value type id -> its name, and the code that struct and numpy share for it.
SCALARS: dict[int, tuple[str, str]] = {
    0: ("uint8", "B"),
    1: ("int8", "b"),
    2: ("uint16", "H"),
    3: ("int16", "h"),
    4: ("uint32", "I"),
    5: ("int32", "i"),
    6: ("float32", "f"),
    7: ("bool", "?"),
    10: ("uint64", "Q"),
    11: ("int64", "q"),
    12: ("float64", "d"),
}
TYPE_NAMES = {kind: name for kind, (name, _) in SCALARS.items()} | {STRING: "str", ARRAY: "array"}
SCALAR_BYTES = {kind: struct.calcsize("<" + code) for kind, (_, code) in SCALARS.items()}
# The fewest bytes that one item of an array takes: an empty string, an empty inner array.
MIN_ITEM_BYTES = SCALAR_BYTES | {STRING: 8, ARRAY: 12}


@dataclass(frozen=True, slots=True)
class Value:
    """Bytes `start:stop` of the file, without the type and count that stand before an array."""

    kind: int
    start: int
    stop: int
    item_kind: int = -1  # arrays: the type of their items
    count: int = 0  # arrays: the number of items
    # Arrays of strings: the offset of each string's length field, then the end; count + 1 numbers.
    starts: array[int] | None = None


def parse_value(cursor: Cursor, kind: int, what: str, depth: int = 0) -> Value:
    """The value of type `kind` at the cursor, which then stands after it.

    Raises ModelFormatError naming `what`, the key.
    """
    if kind in SCALAR_BYTES:
        return Value(kind, cursor.take(SCALAR_BYTES[kind], what), cursor.pos)
    if kind == STRING:
        length = cursor.u64(f"the length of {what}")
        return Value(kind, cursor.take(length, what), cursor.pos)
    if kind != ARRAY:
        raise cursor.broken(f"{what} is of the unknown value type {kind}")
    if depth == MAX_ARRAY_DEPTH:
        raise cursor.broken(f"{what} nests arrays more than {MAX_ARRAY_DEPTH} deep")
    item_kind = cursor.u32(f"the item type of {what}")
    if item_kind not in MIN_ITEM_BYTES:
        raise cursor.broken(f"{what} is an array of the unknown value type {item_kind}")
    count = cursor.count(f"the length of array {what}", MIN_ITEM_BYTES[item_kind])
    start = cursor.pos
    if item_kind == STRING:
        starts = walk_strings(cursor, count, what)
        return Value(kind, start, cursor.pos, item_kind, count, starts=starts)
    if item_kind == ARRAY:
        for _ in range(count):
            parse_value(cursor, ARRAY, what, depth + 1)
    else:
        cursor.take(count * SCALAR_BYTES[item_kind], what)
    return Value(kind, start, cursor.pos, item_kind, count)


class Metadata(Mapping[str, Any]):
    """The key-value pairs, in file order.

    Scalars are int, float, bool or str; arrays of numbers are NumPy arrays of the file's type,
    arrays of strings are list[str], arrays of arrays are lists. Bytes of a string that are not
    UTF-8 become U+FFFD, so that one bad token does not keep a vocabulary from loading; the true
    bytes are at `string_spans`. Several threads may read.
    """

    def __init__(self, data: mmap, values: dict[str, Value]) -> None:
        self._data = data
        self._values = values
        self._decoded: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        if key not in self._decoded:
            value = self._values[key]
            if self._data.closed:
                raise InvalidArgumentError(f"metadata {key!r} was asked for after close()")
            self._decoded[key] = _decode(self._data, value)
        return self._decoded[key]

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def type_name(self, key: str) -> str:
        """The file's type of a value: "uint32", "str", ..., and "array"."""
        return TYPE_NAMES[self._values[key].kind]

    def array_info(self, key: str) -> tuple[str, int] | None:
        """(type name of the items, number of items) of an array; None for what is no array.

        Nothing is decoded.
        """
        value = self._values[key]
        return (TYPE_NAMES[value.item_kind], value.count) if value.kind == ARRAY else None

    def strings(self, key: str) -> Strings:
        """An array of strings, of which none is decoded before it is asked for.

        Raises InvalidArgumentError when the value is no array of strings, or after `close`.
        """
        starts = self._values[key].starts
        if starts is None:
            raise InvalidArgumentError(f"metadata {key!r} is not an array of strings")
        if self._data.closed:
            raise InvalidArgumentError(f"metadata {key!r} was asked for after close()")
        return Strings(self._data, starts)

    def string_spans(self, key: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Of an array of n strings: offsets [n] into `GGUFFile.mapping`, lengths [n] in bytes.

        Raises InvalidArgumentError when the value is no array of strings.
        """
        import numpy as np

        starts = self._values[key].starts
        if starts is None:
            raise InvalidArgumentError(f"metadata {key!r} is not an array of strings")
        bounds = np.frombuffer(starts, np.uint64).astype(np.int64)
        return bounds[:-1] + 8, np.diff(bounds) - 8


def _decode(data: mmap, value: Value) -> Any:
    if value.kind == STRING:
        return data[value.start : value.stop].decode("utf-8", "replace")
    if value.kind != ARRAY:
        return struct.unpack_from("<" + SCALARS[value.kind][1], data, value.start)[0]
    if value.item_kind == ARRAY:
        cursor = Cursor(data, Path(), value.start)
        return [_decode(data, parse_value(cursor, ARRAY, "")) for _ in range(value.count)]
    if value.starts is not None:
        return Strings(data, value.starts).decoded()
    return _decode_numbers(data, value)


def _decode_numbers(data: mmap, value: Value) -> NDArray[Any]:
    import numpy as np

    code = SCALARS[value.item_kind][1]
    raw = np.frombuffer(data[value.start : value.stop], np.uint8)
    # A bool may be any byte; the bytes of one NumPy bool must be 0 or 1.
    return raw.astype(bool) if code == "?" else raw.view("<" + code).astype(code)
