"""Writes GGUF files for tests: sound ones from dicts, and broken ones piece by piece.

    write_gguf(tmp_path / "tiny.gguf",
               {"general.architecture": "llama", "llama.block_count": 2, ...},
               {"token_embd.weight": array_f32,            # type by dtype
                "blk.0.attn_q.weight": (array_f32, "Q8_0"),  # quantised by the gguf package
                "odd.weight": (raw_bytes, "Q4_K", (rows, n))})  # bytes as they are

Shapes are NumPy's: rows first. The file holds them reversed. Metadata types: bool, str, int (uint32
where it fits, else int64, else uint64), float (float32), NumPy scalars and arrays (their own type),
lists (of str, bool, int as int32 where it fits, float, lists).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llama3jit.files.formats import FORMATS

CODES = {"u1": 0, "i1": 1, "u2": 2, "i2": 3, "u4": 4, "i4": 5, "f4": 6, "b1": 7}
CODES |= {"u8": 10, "i8": 11, "f8": 12}
STRING, ARRAY = 8, 9
DTYPES = {"f4": "F32", "f2": "F16", "f8": "F64", "i1": "I8", "i2": "I16", "i4": "I32", "i8": "I64"}

# An array, or (floats, format name), or (bytes, format name or ggml type, shape).
Tensor = np.ndarray | tuple[np.ndarray, str] | tuple[bytes | np.ndarray, str | int, Sequence[int]]


def write_gguf(
    path: str | Path,
    metadata: dict[str, Any],
    tensors: dict[str, Tensor] | None = None,
    *,
    alignment: int = 32,
    version: int = 3,
) -> Path:
    """Write a sound file; `general.alignment` is added where it is not 32. Gives the path."""
    path = Path(path)
    path.write_bytes(gguf_bytes(metadata, tensors, alignment=alignment, version=version))
    return path


def write_split(
    folder: Path, name: str, metadata: dict[str, Any], tensors: dict[str, Tensor], count: int
) -> list[Path]:
    """The same as `count` shards `name-00001-of-0000N.gguf`; metadata in the first."""
    paths = []
    for number in range(count):
        part = dict(list(tensors.items())[number::count])
        keys = (metadata if number == 0 else {}) | {
            "split.no": np.uint16(number),
            "split.count": np.uint16(count),
            "split.tensors.count": np.int32(len(tensors)),
        }
        path = folder / f"{name}-{number + 1:05d}-of-{count:05d}.gguf"
        paths.append(write_gguf(path, keys, part))
    return paths


def gguf_bytes(
    metadata: dict[str, Any],
    tensors: dict[str, Tensor] | None = None,
    *,
    alignment: int = 32,
    version: int = 3,
) -> bytes:
    """What `write_gguf` writes."""
    if alignment != 32:
        metadata = metadata | {"general.alignment": np.uint32(alignment)}
    entries, blobs, offset = [], [], 0
    for name, tensor in (tensors or {}).items():
        raw, ggml_type, shape = _tensor_bytes(tensor)
        entries.append(tensor_entry(name, shape[::-1], ggml_type, offset))
        blobs.append(raw + bytes(-len(raw) % alignment))
        offset += len(blobs[-1])
    head = header_bytes([key_value(*pair) for pair in metadata.items()], entries, version=version)
    padding = bytes(-len(head) % alignment) if blobs else b""
    return head + padding + b"".join(blobs)


def header_bytes(
    keys: Sequence[bytes] = (),
    entries: Sequence[bytes] = (),
    *,
    n_keys: int | None = None,
    n_tensors: int | None = None,
    version: int = 3,
    magic: bytes = b"GGUF",
) -> bytes:
    """A header of ready pieces; the counts may lie."""
    counts = (
        len(entries) if n_tensors is None else n_tensors,
        len(keys) if n_keys is None else n_keys,
    )
    return magic + struct.pack("<IQQ", version, *counts) + b"".join(keys) + b"".join(entries)


def key_value(key: str | bytes, value: Any) -> bytes:
    """One metadata entry. A value of (type id, bytes) is written as it is."""
    if isinstance(value, tuple):
        return string(key) + struct.pack("<I", value[0]) + value[1]
    kind, raw = _value_bytes(value)
    return string(key) + struct.pack("<I", kind) + raw


def tensor_entry(name: str | bytes, shape: Sequence[int], ggml_type: int, offset: int) -> bytes:
    """One tensor entry; the shape in the file's order, fastest first."""
    dims = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return string(name) + dims + struct.pack("<IQ", ggml_type, offset)


def string(text: str | bytes) -> bytes:
    """A length and the bytes."""
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def array(item_kind: int, items: Sequence[bytes], count: int | None = None) -> tuple[int, bytes]:
    """An array value for `key_value`; the count may lie."""
    count = len(items) if count is None else count
    return ARRAY, struct.pack("<IQ", item_kind, count) + b"".join(items)


def _value_bytes(value: Any) -> tuple[int, bytes]:
    if isinstance(value, str | bytes):
        return STRING, string(value)
    if isinstance(value, list) and (not value or isinstance(value[0], str | bytes)):
        return array(STRING, [string(item) for item in value])
    if isinstance(value, list) and isinstance(value[0], list | np.ndarray):
        return array(ARRAY, [_value_bytes(item)[1] for item in value])
    if isinstance(value, bool | np.bool_):
        value = np.bool_(value)
    elif isinstance(value, int):
        fits = 0 <= value < 1 << 32, -(1 << 63) <= value < 1 << 63
        value = np.uint32(value) if fits[0] else np.int64(value) if fits[1] else np.uint64(value)
    elif isinstance(value, float):
        value = np.float32(value)
    elif isinstance(value, list):
        value = np.array(value)
        if value.dtype == np.float64:
            value = value.astype(np.float32)
        elif value.dtype == np.int64 and np.abs(value).max() < 1 << 31:
            value = value.astype(np.int32)
    kind, raw = CODES[value.dtype.str[1:]], value.astype(value.dtype.newbyteorder("<")).tobytes()
    return (kind, raw) if value.ndim == 0 else array(kind, [raw], value.size)


def _tensor_bytes(tensor: Tensor) -> tuple[bytes, int, tuple[int, ...]]:
    """(bytes, ggml type, NumPy shape)."""
    if isinstance(tensor, np.ndarray):
        name = DTYPES[tensor.dtype.str[1:]]
        return np.ascontiguousarray(tensor).tobytes(), FORMATS[name].ggml_type, tensor.shape
    if len(tensor) == 3:
        raw, kind, shape = tensor
        ggml_type = FORMATS[kind].ggml_type if isinstance(kind, str) else kind
        return bytes(raw), ggml_type, tuple(shape)
    values, name = tensor
    gguf = pytest.importorskip("gguf")
    quantised = gguf.quants.quantize(
        np.ascontiguousarray(values, np.float32), gguf.GGMLQuantizationType[name]
    )
    return quantised.tobytes(), FORMATS[name].ggml_type, values.shape
