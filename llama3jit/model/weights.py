"""Weights by name: matrices as they lie in the file, vectors as float32, tables computed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from llama3jit.errors import ModelFormatError
from llama3jit.model.config import ModelConfig
from llama3jit.model.plan import Operand
from llama3jit.model.rope_frequencies import inverse_frequencies
from llama3jit.ops import dequantise

ROPE_FACTORS = "rope_freqs.weight"


def matrix(gguf: Any, name: str, operand: Operand) -> NDArray[np.uint8]:
    """A view u8[N, row_bytes] on the mapped file."""
    view: NDArray[np.uint8] = gguf.data(name).reshape(operand.shape)
    return view


def vector(gguf: Any, name: str) -> NDArray[np.float32]:
    """A one-dimensional tensor as a new float32 array."""
    variant = gguf.tensors[name].format.name.lower()
    values: NDArray[np.float32] = dequantise.rows(gguf.data(name)[None], variant)[0]
    return np.ascontiguousarray(values)


def frequencies(gguf: Any, config: ModelConfig) -> NDArray[np.float64]:
    """The plan's table "inverse_frequencies", with the file's rope_freqs.weight if it has one."""
    factors = None
    tensor = gguf.tensors.get(ROPE_FACTORS)
    if tensor is not None:
        half = config.rope.dim // 2
        if tuple(tensor.shape) != (half,) or tensor.format is None:
            raise ModelFormatError(
                f"tensor {ROPE_FACTORS} has the shape {list(tensor.shape)}; expected [{half}]"
            )
        factors = vector(gguf, ROPE_FACTORS)
        if not (np.isfinite(factors).all() and (factors > 0).all()):
            raise ModelFormatError(f"tensor {ROPE_FACTORS} must hold finite numbers above 0")
    return inverse_frequencies(config.rope, factors)[0]
