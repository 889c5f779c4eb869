"""Parses the header of one GGUF file (versions 2 and 3, little-endian).

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING

from llama3jit.errors import ModelFormatError, UnsupportedError
from llama3jit.files.formats import BY_GGML_TYPE, BlockFormat
from llama3jit.files.gguf_cursor import Cursor, quoted
from llama3jit.files.gguf_values import Metadata, Value, parse_value
from llama3jit.files.sniff import looks_like

if TYPE_CHECKING:
    from mmap import mmap
    from pathlib import Path

DEFAULT_ALIGNMENT = 32
MAX_DIMS = 4  # GGML_MAX_DIMS
# More than any model has; they bound the memory that a file made of tiny entries can ask for.
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 17
MIN_KEY_BYTES = 8 + 1 + 4 + 1
MIN_TENSOR_BYTES = 8 + 1 + 4 + 4 + 8


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies and what its bytes mean."""

    name: str
    format: BlockFormat | None  # None: a ggml type that formats.py does not list
    ggml_type: int
    shape: tuple[int, ...]  # GGUF order: shape[0] runs fastest, shape[1] counts rows
    offset: int  # bytes from the start of the file
    nbytes: int  # of an unlisted type: the room up to the next tensor
    shard: int  # index into GGUFFile.paths

    @property
    def type_name(self) -> str:
        """The format's name, or "type 37"."""
        return self.format.name if self.format else f"type {self.ggml_type}"


@dataclass(frozen=True, slots=True)
class Header:
    """What one file of a model says about itself."""

    version: int
    alignment: int
    metadata: Metadata
    tensors: list[TensorInfo]


def parse_header(data: mmap, path: Path, shard: int = 0) -> Header:
    """The header in `data`, the whole of the file at `path`; reads no tensor data.

    Raises ModelFormatError for what is no GGUF file or a broken one, UnsupportedError for a
    version or byte order that is not read.
    """
    cursor = Cursor(data, path)
    if data[:4] != b"GGUF":
        check_magic(data[:512], path)
    cursor.pos = 4
    version = _parse_version(cursor)
    n_tensors = cursor.count("the number of tensors", MIN_TENSOR_BYTES, MAX_TENSORS)
    n_keys = cursor.count("the number of metadata keys", MIN_KEY_BYTES, MAX_KEYS)
    values: dict[str, Value] = {}
    for index in range(n_keys):
        key = cursor.name(f"the name of metadata key {index}")
        if key in values:
            raise cursor.broken(f"metadata key {quoted(key)} occurs twice")
        values[key] = parse_value(cursor, cursor.u32(f"the type of {quoted(key)}"), quoted(key))
    metadata = Metadata(data, values)
    raw = [_parse_tensor(cursor, index) for index in range(n_tensors)]
    alignment = _alignment(cursor, metadata)
    return Header(version, alignment, metadata, _place_tensors(cursor, raw, alignment, shard))


def check_magic(head: bytes, path: Path) -> None:
    """Raise ModelFormatError unless `head`, the first bytes of `path`, begins a GGUF file."""
    if head[:4] == b"FUGG":
        raise UnsupportedError(
            f"{path} is a big-endian GGUF file; only little-endian ones are read"
        )
    if head[:4] != b"GGUF":
        raise ModelFormatError(f"{path} is not a GGUF file; it looks like {looks_like(head)}")


def _parse_version(cursor: Cursor) -> int:
    version = cursor.u32("the version")
    if version and version & 0xFFFF == 0:
        raise UnsupportedError(
            f"{cursor.path} is a big-endian GGUF file; only little-endian ones are read"
        )
    if version not in (2, 3):
        raise UnsupportedError(
            f"{cursor.path} is GGUF version {version}; versions 2 and 3 are read"
        )
    return version


def _parse_tensor(cursor: Cursor, index: int) -> tuple[str, tuple[int, ...], int, int]:
    """(name, shape, ggml type, offset from the start of the data)."""
    name = cursor.name(f"the name of tensor {index}")
    n_dims = cursor.u32(f"the number of dimensions of tensor {quoted(name)}")
    if n_dims > MAX_DIMS:
        raise cursor.broken(
            f"tensor {quoted(name)} has {n_dims} dimensions, at most {MAX_DIMS} exist"
        )
    start = cursor.take(8 * n_dims + 12, f"the entry of tensor {quoted(name)}")
    *shape, ggml_type, offset = struct.unpack_from(f"<{n_dims}QIQ", cursor.data, start)
    if 0 in shape:
        raise cursor.broken(f"tensor {quoted(name)} has a dimension of 0: shape {tuple(shape)}")
    if prod(shape) >= 1 << 63:
        raise cursor.broken(
            f"tensor {quoted(name)} is too large for any file: shape {tuple(shape)}"
        )
    return name, tuple(shape), ggml_type, offset


def _alignment(cursor: Cursor, metadata: Metadata) -> int:
    if "general.alignment" not in metadata:
        return DEFAULT_ALIGNMENT
    kind = metadata.type_name("general.alignment")
    if "int" not in kind:
        raise cursor.broken(f"general.alignment is of type {kind}, expected uint32")
    value = int(metadata["general.alignment"])
    if value <= 0 or value & (value - 1):
        raise cursor.broken(f"general.alignment is {value}, expected a power of two")
    return value


def _place_tensors(
    cursor: Cursor,
    raw: list[tuple[str, tuple[int, ...], int, int]],
    alignment: int,
    shard: int,
) -> list[TensorInfo]:
    """Check names, row lengths and places; in the order of the entries."""
    data_start = -(-cursor.pos // alignment) * alignment
    offsets = sorted({offset for _, _, _, offset in raw})
    next_offset = dict(pairwise(offsets))
    tensors: dict[str, TensorInfo] = {}
    for name, shape, ggml_type, offset in raw:
        if name in tensors:
            raise cursor.broken(f"tensor {quoted(name)} occurs twice")
        if offset % alignment:
            raise cursor.broken(
                f"tensor {quoted(name)} lies at offset {offset}, which general.alignment "
                f"{alignment} does not divide"
            )
        start = data_start + offset
        block = BY_GGML_TYPE.get(ggml_type)
        if block:
            nbytes = _tensor_bytes(cursor, name, shape, block)
        else:
            room_end = data_start + next_offset.get(offset, cursor.size - data_start)
            nbytes = max(room_end - start, 1)
        if start + nbytes > cursor.size:
            raise cursor.broken(
                f"tensor {quoted(name)} ends at byte {start + nbytes}, and the file has "
                f"{cursor.size} (cut short? download it again)"
            )
        tensors[name] = TensorInfo(name, block, ggml_type, shape, start, nbytes, shard)
    for one, after in pairwise(sorted(tensors.values(), key=lambda tensor: tensor.offset)):
        if one.offset + one.nbytes > after.offset:
            raise cursor.broken(f"tensors {quoted(one.name)} and {quoted(after.name)} overlap")
    return list(tensors.values())


def _tensor_bytes(cursor: Cursor, name: str, shape: tuple[int, ...], block: BlockFormat) -> int:
    row = shape[0] if shape else 1
    if row % block.block_size:
        raise cursor.broken(
            f"tensor {quoted(name)} has rows of {row} values, and {block.name} stores blocks of "
            f"{block.block_size}"
        )
    return block.row_bytes(row) * prod(shape[1:])
