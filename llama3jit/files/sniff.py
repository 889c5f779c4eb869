"""What a file that is not a GGUF model looks like, from its first bytes."""

from __future__ import annotations

_STARTS: list[tuple[bytes, str]] = [
    (
        b"version https://git-lfs",
        "a git-lfs pointer: the model itself was not fetched (git lfs pull)",
    ),
    (b"lmgg", "an old ggml model, from before GGUF"),
    (b"fmgg", "an old ggml model (ggmf), from before GGUF"),
    (b"tjgg", "an old ggml model (ggjt), from before GGUF"),
    (b"PK\x03\x04", "a zip archive, perhaps PyTorch weights or a wheel"),
    (b"\x80\x02", "a Python pickle, perhaps PyTorch weights"),
    (b"\x89HDF", "an HDF5 file"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive"),
    (b"\xfd7zXZ", "an xz archive"),
    (b"7z\xbc\xaf", "a 7z archive"),
]


def looks_like(head: bytes) -> str:
    """A few words on what starts with `head` (64 bytes or more, less where the file is shorter)."""
    if not head:
        return "an empty file"
    if not head.strip(b"\0"):
        return "zeros, perhaps a download that never finished"
    for start, words in _STARTS:
        if head.startswith(start):
            return words
    if len(head) > 8 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 1 << 40:
        return "a safetensors file; convert it to GGUF first"
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<!doctype html", b"<html", b"<?xml", b"<head")):
        return "a web page, so its address was not that of the file itself"
    if text.startswith((b"{", b"[")):
        return "JSON"
    return f"something else (it starts with {head[:8]!r})"
