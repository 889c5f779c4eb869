"""A model's configuration, read off GGUF metadata. Nothing else knows the metadata's keys.

Keys are those of the GGUF specification (ggml's docs/gguf.md and gguf-py's constants).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llama3jit.errors import ModelFormatError, UnsupportedError
from llama3jit.model.families import FAMILIES


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding: `dim` components of a head turn; the rest is how long contexts scale."""

    dim: int
    base: float
    scaling: str = "none"  # "none", "linear", "yarn" or "llama3"
    factor: float = 1.0
    original_context: int = 0
    attention_factor: float = 1.0
    extrapolation: float = 1.0  # yarn: how much of the ramp is applied
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What a plan needs to know beside the tensors."""

    architecture: str
    n_layer: int
    n_embd: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_ff: int
    vocab_size: int
    context_length: int
    rms_eps: float
    rope: RopeConfig
    attention_scale: float
    sliding_window: int  # tokens; 0 is no limit


class Keys:
    """Checked look-ups of `{architecture}.…` in metadata; errors name the key and what it holds."""

    def __init__(self, metadata: Mapping[str, Any], architecture: str) -> None:
        self.metadata = metadata
        self.architecture = architecture

    def number(
        self, key: str, default: float | None = None, *, lowest: float = 0.0, above: bool = False
    ) -> float:
        """A finite number not below `lowest`, or above it."""
        name = f"{self.architecture}.{key}"
        value = self.metadata.get(name, default)
        if value is None:
            raise ModelFormatError(f"the metadata lacks {name}, which a model needs")
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or value < lowest or (above and value == lowest):
            bound = f"{'above' if above else 'of at least'} {lowest:g}"
            raise ModelFormatError(f"{name} is {value!r:.60}; expected a number {bound}")
        return float(value)

    def integer(self, key: str, default: int | None = None, *, lowest: int = 1) -> int:
        """A whole number from `lowest` to 2^31 - 1."""
        value = self.number(key, default, lowest=lowest)
        if value != int(value) or value > 2**31 - 1:
            name = f"{self.architecture}.{key}"
            raise ModelFormatError(f"{name} is {value!r}; expected a whole number below 2^31")
        return int(value)

    def text(self, key: str, default: str) -> str:
        """A word."""
        name = f"{self.architecture}.{key}"
        value = self.metadata.get(name, default)
        if not isinstance(value, str):
            raise ModelFormatError(f"{name} is {value!r:.60}; expected text")
        return value

    def has(self, key: str) -> bool:
        return f"{self.architecture}.{key}" in self.metadata


def read_config(gguf: Any) -> ModelConfig:
    """The configuration of an open model file (`.metadata`, `.tensors`).

    Raises UnsupportedError for an architecture or feature that has no plan, ModelFormatError for
    metadata that is missing or makes no sense.
    """
    metadata: Mapping[str, Any] = gguf.metadata
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise ModelFormatError("the metadata lacks general.architecture; this is no model file")
    if architecture not in FAMILIES:
        raise UnsupportedError(
            f"the architecture {architecture!r} is not supported (supported: "
            f"{', '.join(FAMILIES)}); `llama3jit inspect` still shows the file"
        )
    keys = Keys(metadata, architecture)
    if keys.has("expert_count") and keys.integer("expert_count", lowest=0) > 0:
        raise UnsupportedError(
            f"this {architecture} model is a mixture of experts ({architecture}.expert_count is "
            f"{keys.integer('expert_count')}), which is not supported"
        )
    n_embd = keys.integer("embedding_length")
    n_head = keys.integer("attention.head_count")
    n_head_kv = keys.integer("attention.head_count_kv", n_head)
    if n_head % n_head_kv:
        raise ModelFormatError(
            f"{n_head} attention heads cannot share {n_head_kv} KV heads evenly "
            f"({architecture}.attention.head_count, .head_count_kv)"
        )
    if not keys.has("attention.key_length") and n_embd % n_head:
        raise ModelFormatError(
            f"{architecture}.embedding_length {n_embd} is not a multiple of the {n_head} heads, "
            f"and there is no {architecture}.attention.key_length"
        )
    head_dim = keys.integer("attention.key_length", n_embd // n_head)
    value_dim = keys.integer("attention.value_length", head_dim)
    if value_dim != head_dim:
        raise UnsupportedError(
            f"keys of {head_dim} and values of {value_dim} components are not supported"
        )
    context_length = keys.integer("context_length")
    return ModelConfig(
        architecture=architecture,
        n_layer=keys.integer("block_count"),
        n_embd=n_embd,
        n_head=n_head,
        n_head_kv=n_head_kv,
        head_dim=head_dim,
        n_ff=keys.integer("feed_forward_length"),
        vocab_size=_vocab_size(gguf, keys),
        context_length=context_length,
        rms_eps=keys.number("attention.layer_norm_rms_epsilon"),
        rope=_rope(keys, head_dim, context_length),
        attention_scale=keys.number("attention.scale", head_dim**-0.5, above=True),
        sliding_window=keys.integer("attention.sliding_window", 0, lowest=0),
    )


def _vocab_size(gguf: Any, keys: Keys) -> int:
    embedding = gguf.tensors.get("token_embd.weight")
    if embedding is not None and len(embedding.shape) == 2:
        return int(embedding.shape[1])
    return keys.integer("vocab_size")


def _rope(keys: Keys, head_dim: int, context_length: int) -> RopeConfig:
    dim = keys.integer("rope.dimension_count", head_dim)
    if dim % 2 or dim > head_dim:
        name = f"{keys.architecture}.rope.dimension_count"
        raise ModelFormatError(f"{name} is {dim}; expected an even number up to {head_dim}")
    # Older files have this one key instead of a type and a factor; a factor alone is linear too.
    linear = keys.number("rope.scale_linear", 1.0, above=True)
    factor = keys.number("rope.scaling.factor", linear, above=True)
    implied = "none" if factor == 1.0 else "linear"
    scaling = keys.text("rope.scaling.type", implied)
    if scaling == "none" and linear != 1.0:
        scaling = "linear"
    if scaling not in ("none", "linear", "yarn", "llama3"):
        raise UnsupportedError(
            f"rope scaling {scaling!r} is not supported (supported: none, linear, yarn, llama3)"
        )
    base = keys.number("rope.freq_base", 10000.0, above=True)
    if scaling == "yarn" and base == 1:
        raise ModelFormatError(
            f"{keys.architecture}.rope.freq_base is 1, with which yarn scaling has no meaning; "
            "expected another number above 0"
        )
    extrapolation = keys.number("rope.scaling.yarn_ext_factor", 1.0, lowest=-1.0)
    return RopeConfig(
        dim=dim,
        base=base,
        scaling=scaling,
        factor=factor,
        original_context=keys.integer("rope.scaling.original_context_length", context_length),
        attention_factor=keys.number("rope.scaling.attn_factor", 1.0, above=True),
        extrapolation=1.0 if extrapolation < 0 else extrapolation,
        beta_fast=keys.number("rope.scaling.yarn_beta_fast", 32.0, above=True),
        beta_slow=keys.number("rope.scaling.yarn_beta_slow", 1.0, above=True),
        low_frequency_factor=keys.number("rope.scaling.low_freq_factor", 1.0, above=True),
        high_frequency_factor=keys.number("rope.scaling.high_freq_factor", 4.0, above=True),
    )
