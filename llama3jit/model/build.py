"""Flags and tensors to a plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llama3jit.errors import InvalidArgumentError, ModelFormatError, UnsupportedError
from llama3jit.model.config import ModelConfig
from llama3jit.model.plan import BATCH_ARRAYS, BLOCK_TOKENS, Operand, Plan, Row, Shape
from llama3jit.model.rope_frequencies import inverse_frequencies
from llama3jit.ops.dequantise import FORMATS
from llama3jit.ops.kv_dtypes import GROUP, KV_DTYPES, QUANT_BYTES, shapes_of

# Tensors that some files carry and no plan needs: old tables of rotary frequencies.
IGNORED = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
IGNORED_ENDINGS = (".attn_rot_embd.weight", ".rope_freqs.weight", ".attn.rotary_emb.inv_freq")


def build_plan(config: ModelConfig, tensors: Mapping[str, Any], kv_dtype: str = "f16") -> Plan:
    """The plan of a model; `tensors` maps names to `.shape` (fastest first) and `.format`.

    Raises ModelFormatError for a tensor that is missing or has another shape than the metadata
    says, UnsupportedError for a tensor type without a kernel or a tensor that no op would use,
    InvalidArgumentError for a `kv_dtype` that the model's head_dim does not allow.
    """
    builder = _Builder(config, tensors, kv_dtype)
    builder.build()
    unused = [
        name
        for name in tensors
        if name not in builder.used and name not in IGNORED and not name.endswith(IGNORED_ENDINGS)
    ]
    if unused:
        raise UnsupportedError(
            f"tensor {unused[0]} (and {len(unused) - 1} more) has no place in a "
            f"{config.architecture} model; leaving it out would give wrong results"
        )
    return builder.plan


class _Builder:
    """Appends rows; keeps the plan's operands and the tensors used."""

    def __init__(self, config: ModelConfig, tensors: Mapping[str, Any], kv_dtype: str) -> None:
        self.config = config
        self.tensors = tensors
        self.kv_dtype = kv_dtype
        self.plan = Plan(operands=dict(BATCH_ARRAYS))
        self.used: set[str] = set()

    def row(self, op: str, variant: str = "", **operands: str | float | int) -> None:
        self.plan.rows.append(Row(op, operands, variant))

    def buffer(self, name: str, *shape: int | str, kind: str = "buffer", dtype: str = "f32") -> str:
        self.plan.operands.setdefault(name, Operand(kind, dtype, shape))
        return name

    def tensor(self, name: str, shape: tuple[int, ...]) -> Any:
        """A tensor of the file that must have this shape, fastest dim first."""
        tensor = self.tensors.get(name)
        if tensor is None:
            raise ModelFormatError(f"tensor {name} is missing; the file is not a whole model")
        if tuple(tensor.shape) != shape:
            raise ModelFormatError(
                f"tensor {name} has the shape {list(tensor.shape)}; the metadata asks for "
                f"{list(shape)}"
            )
        if tensor.format is None or tensor.format.name.lower() not in FORMATS:
            kind = tensor.format.name if tensor.format else f"type {tensor.ggml_type}"
            raise UnsupportedError(
                f"tensor {name} is stored as {kind}, which no kernel reads; use another "
                f"quantisation of the model (readable: {' '.join(FORMATS).upper()})"
            )
        self.used.add(name)
        return tensor

    def vector(self, name: str, n: int) -> str:
        """A one-dimensional weight, read as float32."""
        self.tensor(name, (n,))
        self.plan.operands[name] = Operand("vector", "f32", (n,))
        return name

    def weight(self, name: str, n_in: int, n_out: int) -> tuple[str, str]:
        """A matrix as it lies in the file, and its format as a variant."""
        tensor = self.tensor(name, (n_in, n_out))
        shape: Shape = (n_out, tensor.format.row_bytes(n_in))
        self.plan.operands[name] = Operand("weight", "u8", shape)
        return name, tensor.format.name.lower()

    def matmul(self, out: str, weight: str, x: str, n_in: int, n_out: int) -> None:
        """out = weight x, with a bias if the file has one."""
        name, variant = self.weight(f"{weight}.weight", n_in, n_out)
        self.row("matmul", variant, out=out, weight=name, x=x)
        if f"{weight}.bias" in self.tensors:
            self.row("add_bias", out=out, bias=self.vector(f"{weight}.bias", n_out))

    def build(self) -> None:
        config = self.config
        n_embd, rope_half = config.n_embd, config.rope.dim // 2
        self.buffer("x", "T", n_embd)
        self.buffer("inverse_frequencies", rope_half, kind="table", dtype="f64")
        self.buffer("turns", "T", rope_half, 2)
        name, variant = self.weight("token_embd.weight", n_embd, config.vocab_size)
        self.row("embed", variant, out="x", weight=name, tokens="tokens")
        self.row(
            "rope_angles",
            turns="turns",
            positions="positions",
            inverse_frequencies="inverse_frequencies",
            magnitude=inverse_frequencies(config.rope, None)[1],
        )
        for layer in range(config.n_layer):
            self.attention(f"blk.{layer}")
            if layer == config.n_layer - 1:
                # What follows the last attention works on each token alone.
                self.keep_rows_with_logits()
            self.feed_forward(f"blk.{layer}", last=layer == config.n_layer - 1)
        rows = self.buffer("x.rows", "R", n_embd)
        self.norm("h.rows", rows, "output_norm.weight", "R")
        tied = "output.weight" not in self.tensors
        head = "token_embd" if tied else "output"
        self.buffer("logits", "R", config.vocab_size)
        self.matmul("logits", head, "h.rows", n_embd, config.vocab_size)

    def norm(self, out: str, x: str, weight: str, rows: str) -> None:
        self.buffer(out, rows, self.config.n_embd)
        vector = self.vector(weight, self.config.n_embd)
        self.row("rmsnorm", out=out, x=x, weight=vector, eps=self.config.rms_eps)

    def attention(self, block: str) -> None:
        """attended = attention of the normalised x, whose projection is added to x."""
        c = self.config
        q = self.buffer("q", "T", c.n_head, c.head_dim)
        k = self.buffer("k", "T", c.n_head_kv, c.head_dim)
        v = self.buffer("v", "T", c.n_head_kv, c.head_dim)
        attended = self.buffer("attended", "T", c.n_head, c.head_dim)
        k_cache, v_cache = self.caches(block)
        self.norm("h", "x", f"{block}.attn_norm.weight", "T")
        self.matmul(q, f"{block}.attn_q", "h", c.n_embd, c.n_head * c.head_dim)
        self.matmul(k, f"{block}.attn_k", "h", c.n_embd, c.n_head_kv * c.head_dim)
        self.matmul(v, f"{block}.attn_v", "h", c.n_embd, c.n_head_kv * c.head_dim)
        self.row("rope", x=q, turns="turns")
        self.row("rope", x=k, turns="turns")
        where = {"positions": "positions", "seq_of": "seq_of", "block_tables": "block_tables"}
        caches = {"k_cache": k_cache, "v_cache": v_cache}
        turned = self.kv_dtype in QUANT_BYTES
        if turned:
            for x in (q, k, v):
                self.row("hadamard", x=x)
        self.row("kv_append", self.kv_dtype, **caches, k=k, v=v, **where)
        self.row(
            "attention",
            self.kv_dtype,
            out=attended,
            q=q,
            **caches,
            **where,
            scale=c.attention_scale,
            window=c.sliding_window,
        )
        if turned:
            self.row("hadamard", x=attended)

    def caches(self, block: str) -> list[str]:
        """The caches of keys and of values of a layer."""
        c = self.config
        if self.kv_dtype in QUANT_BYTES and c.head_dim % GROUP:
            raise InvalidArgumentError(
                f"kv_dtype {self.kv_dtype} has a scale for each {GROUP} components of a head, and "
                f"head_dim is {c.head_dim}, no multiple of that; use f16 or f32"
            )
        shapes = shapes_of(self.kv_dtype, c.head_dim, BLOCK_TOKENS)
        dtype = str(KV_DTYPES[self.kv_dtype]["kv"])
        return [
            self.buffer(
                f"{block}.{name}", "n_blocks", c.n_head_kv, *shape, kind="cache", dtype=dtype
            )
            for name, shape in zip(("k_cache", "v_cache"), shapes, strict=True)
        ]

    def keep_rows_with_logits(self) -> None:
        c = self.config
        attended = self.buffer("attended.rows", "R", c.n_head, c.head_dim)
        rows = self.buffer("x.rows", "R", c.n_embd)
        self.row("select_rows", out=attended, x="attended", logits_rows="logits_rows")
        self.row("select_rows", out=rows, x="x", logits_rows="logits_rows")

    def feed_forward(self, block: str, *, last: bool) -> None:
        """x += attn_output attended; x += ffn_down swiglu(ffn_gate h, ffn_up h), h normalised x."""
        c = self.config
        rows, end = ("R", ".rows") if last else ("T", "")
        x, y = f"x{end}", self.buffer(f"y{end}", rows, c.n_embd)
        gate = self.buffer(f"gate{end}", rows, c.n_ff)
        up = self.buffer(f"up{end}", rows, c.n_ff)
        self.matmul(y, f"{block}.attn_output", f"attended{end}", c.n_head * c.head_dim, c.n_embd)
        self.row("add", out=x, x=y)
        h = f"h{end}"
        self.norm(h, x, f"{block}.ffn_norm.weight", rows)
        self.matmul(gate, f"{block}.ffn_gate", h, c.n_embd, c.n_ff)
        self.matmul(up, f"{block}.ffn_up", h, c.n_embd, c.n_ff)
        self.row("swiglu", out=gate, gate=gate, up=up)
        self.matmul(y, f"{block}.ffn_down", gate, c.n_ff, c.n_embd)
        self.row("add", out=x, x=y)
