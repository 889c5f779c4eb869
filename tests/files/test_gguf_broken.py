"""Files that the reader must refuse, each with a message that says what is wrong."""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING

import numpy as np
import pytest
from gguf_writer import (
    array,
    gguf_bytes,
    header_bytes,
    key_value,
    string,
    tensor_entry,
    write_gguf,
)

from llama3jit.errors import Llama3JitError, ModelFormatError, ModelNotFoundError, UnsupportedError
from llama3jit.files.gguf import open_gguf

if TYPE_CHECKING:
    from pathlib import Path

HUGE = (1 << 64) - 1
F32, Q4_0 = 0, 2
ARCH = key_value("general.architecture", "llama")


def one(
    name: str | bytes, shape: list[int], ggml_type: int, offset: int, data: int = 4096
) -> bytes:
    """A file with one tensor and `data` bytes of zeros after the header."""
    return header_bytes([ARCH], [tensor_entry(name, shape, ggml_type, offset)]) + bytes(data)


def two(first: tuple[int, int], second: tuple[int, int]) -> bytes:
    """A file with F32 tensors a and b of (values, offset)."""
    entries = [
        tensor_entry(n, [s[0]], F32, s[1]) for n, s in zip("ab", (first, second), strict=True)
    ]
    return header_bytes([ARCH], entries) + bytes(4096)


def nested(depth: int) -> tuple[int, bytes]:
    value = array(4, [])
    for _ in range(depth):
        value = array(9, [value[1]])
    return value


def aligned(value: object) -> bytes:
    return header_bytes([key_value("general.alignment", value)])


BROKEN = {
    "counts: tensors": (
        header_bytes([], n_tensors=HUGE),
        "number of tensors is 18446744073709551615",
    ),
    "counts: keys": (header_bytes([], n_keys=1 << 40), "number of metadata keys is 1099511627776"),
    "counts: more keys than written": (header_bytes([ARCH], n_keys=2), "metadata keys is 2|key 1"),
    "counts: too many tiny keys": (
        header_bytes([], n_keys=1 << 17) + bytes(1 << 21),
        "number of metadata keys is 131072, at most 65536",
    ),
    "key: empty": (header_bytes([key_value("", 1)]), "name of metadata key 0 is 0 bytes long"),
    "key: not UTF-8": (header_bytes([key_value(b"\xff\xfe", 1)]), "metadata key 0 .*is not UTF-8"),
    "key: over-long": (header_bytes([key_value("k" * 65536, 1)]), "is 65536 bytes long"),
    "key: length past the end": (
        header_bytes([struct.pack("<Q", 60000) + bytes(30)]),
        "name of metadata key 0 needs 60000 bytes",
    ),
    "key: twice": (header_bytes([ARCH, ARCH]), "'general.architecture' occurs twice"),
    "value: unknown type": (
        header_bytes([key_value("k", (13, bytes(8)))]),
        "unknown value type 13",
    ),
    "value: string past the end": (
        header_bytes([key_value("k", (8, struct.pack("<Q", HUGE) + b"abc"))]),
        "'k' needs 18446744073709551615 bytes",
    ),
    "array: unknown item type": (header_bytes([key_value("k", array(99, []))]), "value type 99"),
    "array: of numbers, too long": (
        header_bytes([key_value("k", array(4, [bytes(4)], 1 << 62))]),
        "length of array 'k' is 4611686018427387904",
    ),
    "array: of strings, too long": (
        header_bytes([key_value("k", array(8, [string("a")], 1 << 61))]),
        "length of array 'k' is 2305843009213693952",
    ),
    "array: count a little too large": (
        header_bytes([key_value("k", array(8, [string("a" * 40)], 3))]),
        "string 1 of 'k' runs past the end|string 2",
    ),
    "array: string length past 64 bits": (
        header_bytes([key_value("k", array(8, [struct.pack("<Q", HUGE), string("b")]))]),
        "string [01] of 'k' runs past the end",
    ),
    "array: last string past the end": (
        header_bytes([key_value("k", array(8, [string("b"), struct.pack("<Q", 2)]))]),
        "string 1 of 'k' runs past the end",
    ),
    "array: nested too deep": (header_bytes([key_value("k", nested(5))]), "nests arrays"),
    "array: nested too deep by far": (header_bytes([key_value("k", nested(5000))]), "nests arrays"),
    "alignment: zero": (aligned(np.uint32(0)), "general.alignment is 0"),
    "alignment: 48": (aligned(np.uint32(48)), "general.alignment is 48, expected a power of two"),
    "alignment: negative": (aligned(np.int32(-32)), "general.alignment is -32"),
    "alignment: a string": (aligned("32"), "general.alignment is of type str"),
    "alignment: a bool": (aligned(True), "general.alignment is of type bool"),
    "alignment: past the file": (
        gguf_bytes({"general.alignment": np.uint32(1 << 31)}, {"a": np.ones(3, np.float32)}),
        "tensor 'a' ends at byte 21474836",
    ),
    "tensor: empty name": (one("", [4], F32, 0), "name of tensor 0 is 0 bytes long"),
    "tensor: name not UTF-8": (one(b"\xff", [4], F32, 0), "tensor 0 .*is not UTF-8"),
    "tensor: twice": (
        header_bytes([], [tensor_entry("a", [4], F32, 0), tensor_entry("a", [4], F32, 32)])
        + bytes(256),
        "tensor 'a' occurs twice",
    ),
    "tensor: 5 dimensions": (one("a", [1] * 5, F32, 0), "'a' has 5 dimensions, at most 4"),
    "tensor: 4294967295 dimensions": (
        header_bytes([], [string("a") + struct.pack("<I", 0xFFFFFFFF) + bytes(64)]),
        "has 4294967295 dimensions",
    ),
    "tensor: zero dimension": (one("a", [4, 0], F32, 0), r"dimension of 0: shape \(4, 0\)"),
    "tensor: product past 64 bits": (
        one("a", [1 << 33, 1 << 33], F32, 0),
        "too large for any file",
    ),
    "tensor: product wraps to 16": (
        one("a", [(1 << 32) + 1, 1 << 32, 1 << 16, 1 << 16], F32, 0),
        "too large for any file",
    ),
    "tensor: product past 64 bits, unlisted type": (
        one("a", [1 << 63, 2], 999, 0),
        "too large for any file",
    ),
    "tensor: past the file": (one("a", [1 << 20], F32, 0), "tensor 'a' ends at byte 4194"),
    "tensor: offset past the file": (
        one("a", [4], F32, 1 << 40),
        "tensor 'a' ends at byte 1099511",
    ),
    "tensor: offset near 64 bits": (one("a", [4], F32, HUGE - 31), "tensor 'a' ends at byte 18446"),
    "tensor: unlisted type past the file": (one("a", [4], 999, 1 << 20), "tensor 'a' ends at byte"),
    "tensor: no data at all": (one("a", [4], F32, 0, data=0), "cut short"),
    "tensor: offset not aligned": (one("a", [4], F32, 16), "offset 16, which general.alignment 32"),
    "tensor: row no multiple of the block": (one("a", [33, 2], Q4_0, 0), "rows of 33 values.*Q4_0"),
    "tensor: block of a smaller row": (one("a", [16, 2], Q4_0, 0), "rows of 16 values"),
    "tensor: no dimensions, quantised": (one("a", [], Q4_0, 0), "rows of 1 values"),
    "overlap: a reaches into b": (two((16, 0), (4, 32)), "tensors 'a' and 'b' overlap"),
    "overlap: b reaches into a": (two((4, 32), (16, 0)), "tensors 'b' and 'a' overlap"),
    "overlap: the same place": (two((4, 0), (4, 0)), "overlap"),
    "split: count is a string": (
        header_bytes([key_value("split.count", "2")]),
        "split.count is of",
    ),
    "split: count is negative": (
        header_bytes([key_value("split.no", np.int32(-4)), key_value("split.count", 3)]),
        "is shard -3 of 3",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_headers_are_refused(tmp_path: Path, case: str) -> None:
    raw, message = BROKEN[case]
    path = tmp_path / "m.gguf"
    path.write_bytes(raw)
    with pytest.raises(ModelFormatError, match=message) as caught:
        open_gguf(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


LIKE = {
    "empty": (b"", "an empty file"),
    "zeros": (bytes(5000), "zeros"),
    "safetensors": (struct.pack("<Q", 40) + b'{"__metadata__":{}}', "a safetensors file"),
    "pytorch zip": (b"PK\x03\x04" + bytes(60), "a zip archive, perhaps PyTorch"),
    "pickle": (b"\x80\x02}q\x00", "a Python pickle"),
    "web page": (b"\n<!DOCTYPE html><html>", "a web page"),
    "git-lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "a git-lfs pointer"),
    "ggml": (b"tjgg" + bytes(60), "an old ggml model"),
    "json": (b'{"error": "not found"}', "JSON"),
    "text": (b"hello, this is text", r"something else \(it starts with b'hello, t'\)"),
    "three bytes": (b"GGU", "something else"),
}


@pytest.mark.parametrize("case", LIKE)
def test_other_files_are_named(tmp_path: Path, case: str) -> None:
    raw, message = LIKE[case]
    path = tmp_path / "m.gguf"
    path.write_bytes(raw)
    with pytest.raises(ModelFormatError, match=f"is not a GGUF file; it looks like {message}"):
        open_gguf(path)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (header_bytes(version=1), "GGUF version 1; versions 2 and 3"),
        (header_bytes(version=0), "GGUF version 0; versions 2 and 3"),
        (header_bytes(version=4), "GGUF version 4; versions 2 and 3"),
        (header_bytes(version=3 << 24), "big-endian"),
        (header_bytes(magic=b"FUGG"), "big-endian"),
    ],
)
def test_other_versions_are_named(tmp_path: Path, raw: bytes, message: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(raw)
    with pytest.raises(UnsupportedError, match=message):
        open_gguf(path)


def test_a_big_endian_file_of_the_gguf_package(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama", endianess=gguf.GGUFEndian.BIG)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedError, match="big-endian"):
        open_gguf(tmp_path / "m.gguf")


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    metadata = {
        "general.architecture": "llama",
        "tokens": ["a", "bc", ""],
        "nested": [["a"], ["b"]],
        "scores": [1.0, 2.0],
        "flag": True,
    }
    tensors = {"a": np.ones((2, 3), np.float32), "b": (bytes(20 * 3), "Q4_1", (3, 32))}
    whole = gguf_bytes(metadata, tensors)
    end = len(whole) - 4  # the last 4 bytes are padding after b
    path = tmp_path / "m.gguf"
    for length in range(end):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelFormatError):
            open_gguf(path)
    path.write_bytes(whole[:end])
    open_gguf(path).close()


def test_a_vocabulary_may_end_where_its_header_ends(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", {"general.architecture": "llama"})
    with open_gguf(path) as file:
        assert file.tensors == {}


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"none\.gguf: no such file"):
        open_gguf(tmp_path / "none.gguf")
    with pytest.raises(ModelFormatError, match="is a folder"):
        open_gguf(tmp_path)
    (tmp_path / "dangling.gguf").symlink_to(tmp_path / "gone")
    with pytest.raises(ModelNotFoundError, match="no such file"):
        open_gguf(tmp_path / "dangling.gguf")
    with pytest.raises(ModelFormatError, match="cannot be read"):
        open_gguf("a\0b")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelFormatError, match="not a regular file"):
        open_gguf(tmp_path / "pipe")


def test_messages_stay_short(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    for raw in (
        header_bytes([key_value("k" * 60000, 1)] * 2),
        one("n" * 60000, [4, 0], F32, 0),
    ):
        path.write_bytes(raw)
        with pytest.raises(Llama3JitError) as caught:
            open_gguf(path)
        assert len(str(caught.value)) < 400 + len(str(path))
