"""What the tests of pulling share."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
from gguf_writer import gguf_bytes

if TYPE_CHECKING:
    from llama3jit.files.store import Store

RAW = gguf_bytes(
    {"general.architecture": "llama"},
    {"w": np.random.default_rng(0).integers(0, 99, 3 << 20, np.int8)},
)
SHA256 = hashlib.sha256(RAW).hexdigest()
NAME = "demo-model"


def left_over(store: Store) -> list[str]:
    """What lies in the store beside locks."""
    names = (path.name for path in store.root.iterdir()) if store.root.exists() else ()
    return sorted(name for name in names if not name.endswith(".lock"))


def interrupt_at(stage: str, done_bytes: int) -> Any:
    def progress(what: str, done: int, total: int) -> None:
        if what == stage and done >= done_bytes:
            raise KeyboardInterrupt

    return progress
