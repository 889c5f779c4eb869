"""GPU kernels: PTX intrinsics, for the portable ops and for tuned ones.

A tuned kernel is a plain function that numba-cuda compiles. It takes the op's parameters in their
order, an array as its address (int64), then each named dim of the op's annotations in order of
first use (int64). A module with kernels has `kernel(op, variant)`, which makes the function, and
`launch(op, variant, dims)`, which says how to launch it; nothing is imported before it is needed.

A variant is a format or a dtype, and after a colon what the kernel is made for, as a number of
tokens: "q4_0:8". `variant_of` chooses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True, slots=True)
class Launch:
    """Blocks and threads of a launch in x, y and z, and bytes of dynamic shared memory; more than
    48 KB of it have to be allowed on the kernel first."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int = 0


# Compute capability and multiprocessors of the GPU: set them before asking for kernels or launches.
CAPABILITY = [(9, 0)]
PROCESSORS = [132]
# Op -> the lowest compute capability that its kernel runs on; the others run on all.
LEAST = {
    "attention": (8, 0),
    "attention_chunks": (8, 0),
    "matmul": (8, 0),
    "matmul_halves": (9, 0),
    "matmul_int8": (8, 0),
}
# Formats whose products with int8 activations have a kernel.
INT8 = ("q4_0", "q4_1", "q8_0", "q4_k", "q5_k", "q6_k", "iq4_xs")
# Formats that are packed as they are.
FLOATS = ("f16", "bf16")
# Numbers of tokens that the kernels for few tokens are made for; more are taken in parts.
FEW = (1, 8, 16)
# Tokens of a tile of the kernels for many.
WIDE = (16, 32, 64, 128, 256)
# Types of the KV cache that have kernels.
KV_DTYPES = ("f16", "q8_0", "q4_0")
# Sizes of a head that attention has kernels for.
HEAD_DIMS = (64, 128)
# Formats that a row of a weight can be read from as it lies in the file.
READABLE = (
    *("f64", "f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1"),
    *("q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs", "mxfp4", "nvfp4"),
    *("iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq1_s", "iq1_m", "tq1_0", "tq2_0"),
)


def _each(names: tuple[str, ...], sizes: tuple[int, ...]) -> tuple[str, ...]:
    return tuple(f"{name}:{size}" for name in names for size in sizes)


def _wide() -> tuple[str, ...]:
    """Each format with each tile that there is room for."""
    from kernels_cuda.wide import piece_bytes, pieces_of

    formats = (*INT8, *FLOATS)
    return tuple(f"{n}:{size}" for n in formats for size in WIDE if pieces_of(size, piece_bytes(n)))


# Op -> the module that holds its tuned kernel, and the variants that it has there.
TUNED: dict[str, tuple[str, tuple[str, ...]]] = {
    "add": ("kernels_cuda.elementwise", ("",)),
    "add_bias": ("kernels_cuda.elementwise", ("",)),
    "attention": ("kernels_cuda.attention", _each(KV_DTYPES, HEAD_DIMS)),
    "attention_chunks": ("kernels_cuda.attention", _each(KV_DTYPES, HEAD_DIMS)),
    "attention_merge": ("kernels_cuda.attention", _each(("",), HEAD_DIMS)),
    "embed": ("kernels_cuda.elementwise", READABLE),
    "hadamard": ("kernels_cuda.turn", _each(("",), HEAD_DIMS)),
    "kv_append": ("kernels_cuda.kv_append", KV_DTYPES),
    "halve": ("kernels_cuda.wide", FLOATS),
    "matmul_halves": ("kernels_cuda.wide", _wide()),
    "matmul": ("kernels_cuda.matmul", _each(FLOATS, FEW)),
    "matmul_int8": ("kernels_cuda.matmul", _each(INT8, FEW)),
    "pack": ("kernels_cuda.pack", (*INT8, *FLOATS)),
    "quantize": ("kernels_cuda.quantize", ("",)),
    "rmsnorm": ("kernels_cuda.norm", ("",)),
    "rope": ("kernels_cuda.elementwise", ("",)),
    "rope_angles": ("kernels_cuda.elementwise", ("",)),
    "select_rows": ("kernels_cuda.elementwise", ("",)),
    "swiglu": ("kernels_cuda.elementwise", ("",)),
    # Several ops in one, whose signatures are in FUSED.
    "add_rmsnorm": ("kernels_cuda.norm", ("",)),
    "add_rmsnorm_quantize": ("kernels_cuda.norm", ("",)),
    "attention_merge_quantize": ("kernels_cuda.attention", _each(("",), HEAD_DIMS)),
    "leading": ("kernels_cuda.leading", ("",)),
    "read_sweep": ("kernels_cuda.sweep", ("",)),
    "rmsnorm_quantize": ("kernels_cuda.norm", ("",)),
    "rope_append": ("kernels_cuda.elementwise", ("f16",)),
    "rope_turn": ("kernels_cuda.turn", _each(("",), HEAD_DIMS)),
    "swiglu_quantize": ("kernels_cuda.feed", ("",)),
}

_INT8_ROWS = "xq: i8[T, K], xs: f32[T, blocks], xsum: i32[T, halves], xtotal: f32[T, blocks], "
_WHERE = "positions: i32[T], seq_of: i32[T], block_tables: i32[S, B]"
_CACHES = (
    "k_cache: u16[n_blocks, kv_heads, block_tokens, head_dim], "
    "v_cache: u16[n_blocks, kv_heads, block_tokens, head_dim], "
)
# The parameters of kernels that are no op's: what each makes, and then what of.
FUSED = {
    # x += y; out = rmsnorm(x)
    "add_rmsnorm": "x: f32[T, K], out: f32[T, K], y: f32[T, K], weight: f32[K], eps: f32",
    # x += y; quantize(rmsnorm(x))
    "add_rmsnorm_quantize": "x: f32[T, K], "
    + _INT8_ROWS
    + "y: f32[T, K], weight: f32[K], eps: f32",
    # quantize(attention_merge(sums, weights)), with K = heads * head_dim
    "attention_merge_quantize": _INT8_ROWS
    + "sums: f32[few, heads, chunks, head_dim], weights: f32[few, heads, chunks, 2]",
    # x as halves in tiles, see halving; size = 128 * 256 * ceil(T / 128) * ceil(K / 256)
    "halve": "xh: u16[size], x: f32[T, K]",
    # of each row the largest logits; see there
    "leading": "leading: i32[R, words], logits: f32[R, N]",
    # out = weight x for the x of which `halve` made xh; more than 8 tokens, sm_90 alone
    "matmul_halves": "out: f32[T, N], weight: u8[rows, row_bytes], xh: u16[size], K: i64",
    # reads all of data
    "read_sweep": "out: i32[n], data: u8[size]",
    # quantize(rmsnorm(x))
    "rmsnorm_quantize": _INT8_ROWS + "x: f32[T, K], weight: f32[K], eps: f32",
    # q = rope of the first heads of qkv; rope of the next ones, and the last ones, to the caches:
    # all_heads = heads + 2 * kv_heads
    "rope_append": "q: f32[T, heads, head_dim], "
    + _CACHES
    + "qkv: f32[T, all_heads, head_dim], turns: f32[T, half, 2], "
    + _WHERE,
    # q, k and v of qkv: rope of q and k, hadamard of all; all_heads = heads + 2 * kv_heads
    "rope_turn": "q: f32[T, heads, head_dim], k: f32[T, kv_heads, head_dim], "
    "v: f32[T, kv_heads, head_dim], qkv: f32[T, all_heads, head_dim], turns: f32[T, half, 2]",
    # quantize(swiglu(gate_up[:, 0], gate_up[:, 1]))
    "swiglu_quantize": _INT8_ROWS + "gate_up: f32[T, 2, K]",
}


def kernel(op: str, variant: str) -> Any:
    """The kernel of an op as a plain function. Imports numba-cuda."""
    return import_module(TUNED[op][0]).kernel(op, variant)


def launch(op: str, variant: str, dims: Mapping[str, int]) -> Launch:
    """How to launch it when the op's named dims are these."""
    found: Launch = import_module(TUNED[op][0]).launch(op, variant, dims)
    return found


def variant_of(op: str, variant: str, dims: Mapping[str, int]) -> str | None:
    """The tuned variant of a plan's variant for these dims; None if there is none."""
    if op not in TUNED or CAPABILITY[0] < LEAST.get(op, (0, 0)):
        return None
    variants = TUNED[op][1]
    if variant in variants:
        return variant
    sizes = [int(v.partition(":")[2]) for v in variants if v.startswith(f"{variant}:")]
    if "head_dim" not in dims:
        sizes = [size for size in sizes if size >= dims.get("T", 0)] or sizes[-1:]
    wanted = dims.get("head_dim")
    module = import_module(TUNED[op][0])
    if op == "matmul_halves":
        return str(module.variant_of(variant, dims, PROCESSORS[0]))
    for size in sizes:
        sized = f"{variant}:{size}"
        if sized in variants and wanted in (None, size):
            if not hasattr(module, "fits") or module.fits(op, sized, dims):
                return sized
    return None
