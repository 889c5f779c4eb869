"""A model file's contents, for tests of the reader."""

from __future__ import annotations

import numpy as np

METADATA = {
    "general.architecture": "llama",
    "a.bool": True,
    "a.uint32": 7,
    "an.int64": -7,
    "a.uint64": (1 << 64) - 1,
    "a.float": 0.5,
    "a.nan": float("nan"),
    "a.text": "naïve ☃ 𐍈",
    "an.empty.text": "",
    **{f"a.{kind}": np.dtype(kind).type(3) for kind in ("i1", "u1", "i2", "u2", "i4", "f8")},
    "arr.text": ["", "a", "ß" * 300, "b\0c", "☃"],
    "arr.plain": ["x", "yy", ""],
    "arr.empty": [],
    "arr.int": [1, -2, 3],
    "arr.bool": np.array([True, False, True]),
    "arr.f8": np.array([1.5, np.inf, -0.0]),
    "arr.u8": np.array([0, (1 << 64) - 1], np.uint64),
    "arr.nested": [[1, 2], [3]],
    "arr.nested.text": [["a", "b"], [], ["c"]],
}


def tensors() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {
        "token_embd.weight": rng.standard_normal((5, 64), np.float32),
        "half": rng.standard_normal((3, 4, 2)).astype(np.float16),
        "scalar.int": np.array([5], np.int32),
        "last": rng.standard_normal((1, 7)),
    }
