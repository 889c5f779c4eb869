"""Tiny Llama models with random weights, as GGUF files and as float64 matrices."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from format_blocks import random_weight, values_of
from gguf_writer import write_gguf

# Tensors of several formats, for any width; the rest is F32.
MIXED = {
    "token_embd.weight": "Q8_0",
    "output.weight": "BF16",
    "*.attn_q.weight": "Q4_0",
    "*.attn_k.weight": "Q8_0",
    "*.attn_v.weight": "F16",
    "*.attn_output.weight": "Q4_1",
    "*.ffn_gate.weight": "Q4_1",
    "*.ffn_up.weight": "Q4_0",
    "*.ffn_down.weight": "Q8_0",
}


@dataclass(frozen=True, slots=True)
class TinyModel:
    """A file, and what it holds: `values` are the tensors as they dequantise, NumPy's shapes."""

    path: Path
    metadata: dict[str, Any]
    values: dict[str, np.ndarray]


def tiny_model(
    path: Path,
    *,
    formats: Mapping[str, str] | None = None,
    n_layer: int = 2,
    n_embd: int = 64,
    n_head: int = 4,
    n_head_kv: int = 2,
    head_dim: int | None = None,
    n_ff: int = 96,
    vocab: int = 300,
    tied: bool = False,
    biases: bool = False,
    rope_freqs: np.ndarray | None = None,
    seed: int = 0,
    **overrides: Any,
) -> TinyModel:
    """Write a model. `formats` maps patterns of tensor names to types, the first match counts; a
    matrix of a type that the gguf package cannot write has random blocks.

    `overrides` are metadata: `general__name="x"` sets general.name; a value of None leaves a key
    out.
    """
    gguf = pytest.importorskip("gguf")
    rng = np.random.default_rng(seed)
    d = head_dim or n_embd // n_head
    shapes = {"token_embd.weight": (vocab, n_embd)}
    for i in range(n_layer):
        shapes |= {
            f"blk.{i}.attn_norm.weight": (n_embd,),
            f"blk.{i}.attn_q.weight": (n_head * d, n_embd),
            f"blk.{i}.attn_k.weight": (n_head_kv * d, n_embd),
            f"blk.{i}.attn_v.weight": (n_head_kv * d, n_embd),
            f"blk.{i}.attn_output.weight": (n_embd, n_head * d),
            f"blk.{i}.ffn_norm.weight": (n_embd,),
            f"blk.{i}.ffn_gate.weight": (n_ff, n_embd),
            f"blk.{i}.ffn_up.weight": (n_ff, n_embd),
            f"blk.{i}.ffn_down.weight": (n_embd, n_ff),
        }
        if biases:
            for part in ("q", "k", "v"):
                shapes[f"blk.{i}.attn_{part}.bias"] = (shapes[f"blk.{i}.attn_{part}.weight"][0],)
    shapes["output_norm.weight"] = (n_embd,)
    if not tied:
        shapes["output.weight"] = (vocab, n_embd)
    tensors: dict[str, Any] = {}
    values: dict[str, np.ndarray] = {}
    for name, shape in shapes.items():
        if name.endswith("norm.weight"):
            x = 1 + 0.2 * rng.standard_normal(shape)
        elif name.endswith("bias"):
            x = 0.5 * rng.standard_normal(shape)
        else:
            x = rng.standard_normal(shape) * (3 / shape[-1]) ** 0.5
        x = x.astype(np.float32)
        kind = "F32"
        if len(shape) == 2:
            patterns = (formats or {}).items()
            kind = next((f for p, f in patterns if fnmatch.fnmatchcase(name, p)), "F32")
        try:
            raw = gguf.quantize(x, gguf.GGMLQuantizationType[kind]).view(np.uint8)
        except NotImplementedError:  # then any values of that size
            raw = random_weight(rng, kind.lower(), *shape, size=float(x.std()))
        tensors[name] = (raw, kind, shape)
        values[name] = values_of(raw, kind.lower()).astype(np.float64)
    if rope_freqs is not None:
        values["rope_freqs.weight"] = tensors["rope_freqs.weight"] = rope_freqs.astype(np.float32)
    metadata = tiny_metadata(
        n_layer=n_layer, n_embd=n_embd, n_head=n_head, n_head_kv=n_head_kv, n_ff=n_ff
    )
    if head_dim is not None:
        metadata["llama.attention.key_length"] = head_dim
        metadata["llama.attention.value_length"] = head_dim
        metadata["llama.rope.dimension_count"] = head_dim
    metadata |= {name.replace("__", "."): value for name, value in overrides.items()}
    metadata = {name: value for name, value in metadata.items() if value is not None}
    return TinyModel(write_gguf(path, metadata, tensors), metadata, values)


def tiny_metadata(
    *,
    n_layer: int = 2,
    n_embd: int = 64,
    n_head: int = 4,
    n_head_kv: int = 2,
    n_ff: int = 96,
) -> dict[str, Any]:
    """The keys that a llama model must have."""
    return {
        "general.architecture": "llama",
        "llama.block_count": n_layer,
        "llama.context_length": 512,
        "llama.embedding_length": n_embd,
        "llama.feed_forward_length": n_ff,
        "llama.attention.head_count": n_head,
        "llama.attention.head_count_kv": n_head_kv,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
    }
