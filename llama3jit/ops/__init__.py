"""The vocabulary: every Transformer op as one Python function, its NumPy reference beside it.

An op takes its outputs first, then inputs, then scalars, and last `items`, the range of independent
pieces of work that this call does. Its annotations are its signature: `x: f32[rows, n]` is a
C-contiguous array of that dtype and shape, `eps: f32` a scalar, `read: function` a function that a
variant of the op binds, `items: rows` how many items there are. A dtype that is none of
`signature.DTYPES` (`kv`) is bound by the variant too.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llama3jit.ops.op import Op

# Op -> its module in this package.
MODULES = {
    "add": "add",
    "add_bias": "add",
    "attention": "attention",
    "attention_chunks": "split_attention",
    "attention_merge": "split_attention",
    "embed": "embed",
    "hadamard": "hadamard",
    "kv_append": "kv_append",
    "matmul": "matmul",
    "matmul_int8": "matmul",
    "pack": "pack",
    "quantize": "quantize",
    "rmsnorm": "rmsnorm",
    "rope": "rope",
    "rope_angles": "rope",
    "select_rows": "select_rows",
    "swiglu": "swiglu",
}


@cache
def find(name: str) -> Op:
    """The op of that name, its module imported now."""
    from importlib import import_module

    found: Op = getattr(import_module(f"{__name__}.{MODULES[name]}"), name)
    return found
