"""Which model a file holds, for what may be used with that model alone."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llama3jit.files.gguf import GGUFFile

SAMPLE_BYTES = 4096  # of each tensor, from its middle


def fingerprint(gguf: GGUFFile) -> str:
    """SHA-256, in hex, of a model's metadata, of the names, shapes and types of its tensors, and of
    a few bytes of each: another model gives another one, and no whole file is read.

    Raises InvalidArgumentError when the file was closed."""
    first = [tensor.offset for tensor in gguf.tensors.values() if tensor.shard == 0]
    header = gguf.mapping[: min(first)] if first else gguf.mapping
    digest = hashlib.sha256(header.tobytes())
    for name in sorted(gguf.tensors):
        tensor = gguf.tensors[name]
        digest.update(f"{name} {tensor.ggml_type} {tensor.shape} {tensor.nbytes}\n".encode())
        start = max(0, (tensor.nbytes - SAMPLE_BYTES) // 2)
        digest.update(gguf.data(name)[start : start + SAMPLE_BYTES].tobytes())
    return digest.hexdigest()
