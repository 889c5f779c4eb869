"""A Llama in float64 NumPy, from the definition of the model alone: what whole models are measured
against."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
from tiny_model import TinyModel


def quantised(x: np.ndarray, kv_dtype: str) -> np.ndarray:
    """x [..., d] as a quantised cache keeps it: heads turned by a Hadamard matrix, rounded by
    gguf-py, turned back."""
    n = x.shape[-1] & -x.shape[-1]
    turn = np.array([[(-1) ** (i & j).bit_count() for j in range(n)] for i in range(n)]) / n**0.5
    kind = gguf.GGMLQuantizationType[kv_dtype.upper()]
    blocks = gguf.quantize((x.reshape(-1, n) @ turn).astype(np.float32).reshape(-1, 32), kind)
    kept = gguf.dequantize(blocks, kind).astype(np.float64)
    return (kept.reshape(-1, n) @ turn).reshape(x.shape)


def forward(
    tiny: TinyModel,
    ids: list[int],
    kv_dtype: str = "f32",
    keep: dict[str, np.ndarray] | None = None,
) -> np.ndarray:
    """Logits float64[T, vocab] of one sequence; keys and values rounded as the cache rounds. `keep`
    gets what is computed on the way, by the names of llama3jit.devices.capture."""
    keep = {} if keep is None else keep
    meta: dict[str, Any] = {key.partition(".")[2]: value for key, value in tiny.metadata.items()}
    w = tiny.values
    eps = np.float64(np.float32(meta["attention.layer_norm_rms_epsilon"]))
    heads, kv_heads = meta["attention.head_count"], meta["attention.head_count_kv"]
    n_tokens, d = len(ids), len(w["blk.0.attn_q.weight"]) // heads
    half = meta.get("rope.dimension_count", d) // 2
    inverse = meta["rope.freq_base"] ** (-np.arange(half) / half) / w.get("rope_freqs.weight", 1.0)
    turns = np.exp(1j * np.outer(np.arange(n_tokens), inverse))[:, None, :]

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x * x).mean(axis=1, keepdims=True) + eps) * w[name]

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0)

    def turned(x: np.ndarray) -> np.ndarray:
        pairs = (x[..., 0 : 2 * half : 2] + 1j * x[..., 1 : 2 * half : 2]) * turns
        x = x.copy()
        x[..., 0 : 2 * half : 2], x[..., 1 : 2 * half : 2] = pairs.real, pairs.imag
        return x

    def cached(x: np.ndarray) -> np.ndarray:
        if kv_dtype.startswith("q"):
            kept = quantised(x, kv_dtype)
        else:
            kept = x.astype(np.float16 if kv_dtype == "f16" else np.float64).astype(np.float64)
        return np.repeat(kept, heads // kv_heads, axis=1)

    ages = np.arange(n_tokens)[:, None] - np.arange(n_tokens)[None, :]
    seen = (ages >= 0) & (ages < (meta.get("attention.sliding_window") or n_tokens))
    x = keep["embd"] = w["token_embd.weight"][ids]
    for layer in range(meta["block_count"]):
        block = f"blk.{layer}"
        h = keep[f"{block}.attn_norm"] = norm(x, f"{block}.attn_norm.weight")
        for name, count in (("attn_q", heads), ("attn_k", kv_heads), ("attn_v", kv_heads)):
            keep[f"{block}.{name}"] = linear(h, f"{block}.{name}").reshape(n_tokens, count, d)
        q = keep[f"{block}.q"] = turned(keep[f"{block}.attn_q"])
        k = keep[f"{block}.k"] = turned(keep[f"{block}.attn_k"])
        k, v = cached(k), cached(keep[f"{block}.attn_v"])
        scores = np.einsum("thd,jhd->htj", q, k) * meta.get("attention.scale", d**-0.5)
        scores = np.where(seen, scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=2, keepdims=True))
        weights /= weights.sum(axis=2, keepdims=True)
        attended = np.einsum("htj,jhd->thd", weights, v)
        keep[f"{block}.attn_probs"], keep[f"{block}.attended"] = weights, attended
        y = linear(attended.reshape(n_tokens, heads * d), f"{block}.attn_output")
        keep[f"{block}.attn_output"] = y
        x = keep[f"{block}.resid_mid"] = x + y
        h = keep[f"{block}.ffn_norm"] = norm(x, f"{block}.ffn_norm.weight")
        gate = keep[f"{block}.ffn_gate"] = linear(h, f"{block}.ffn_gate")
        up = keep[f"{block}.ffn_up"] = linear(h, f"{block}.ffn_up")
        gated = keep[f"{block}.swiglu"] = gate / (1 + np.exp(-gate)) * up
        y = keep[f"{block}.ffn_down"] = linear(gated, f"{block}.ffn_down")
        x = keep[f"{block}.resid"] = x + y
    head = "output" if "output.weight" in w else "token_embd"
    h = keep["result_norm"] = norm(x, "output_norm.weight")
    keep["logits"] = linear(h, head)
    return keep["logits"]


def mean_kl(truth: np.ndarray, found: np.ndarray) -> float:
    """Mean over the rows of the divergence of what was found from the truth, in nats."""

    def log_softmax(x: np.ndarray) -> np.ndarray:
        x = x - x.max(axis=1, keepdims=True)
        return x - np.log(np.exp(x).sum(axis=1, keepdims=True))

    p, q = log_softmax(truth.astype(np.float64)), log_softmax(found.astype(np.float64))
    return float((np.exp(p) * (p - q)).sum(axis=1).mean())
