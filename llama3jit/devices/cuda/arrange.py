"""Where the buffers of a pass lie: in memory that they share, two in the same place if there is no
moment at which both hold something."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from llama3jit.devices.cuda.shapes import nbytes_of

if TYPE_CHECKING:
    from llama3jit.devices.cuda.lower import Lowered

ALIGNMENT = 256
KEPT = ("logits", "leading")  # what is copied to the host at the end
INT8 = ("xq", "xs", "xsum", "xtotal")
# Op -> the parameters that it makes anew, without reading them. What others write they may read.
MADE = {
    "add_rmsnorm": ("out",),
    "add_rmsnorm_quantize": INT8,
    "attention": ("out",),
    "attention_chunks": ("sums", "weights"),
    "attention_merge": ("out",),
    "attention_merge_quantize": INT8,
    "embed": ("out",),
    "halve": ("xh",),
    "leading": ("leading",),
    "matmul": ("out",),
    "matmul_halves": ("out",),
    "matmul_int8": ("out",),
    "quantize": INT8,
    "rmsnorm": ("out",),
    "rmsnorm_quantize": INT8,
    "rope_angles": ("turns",),
    "rope_append": ("q",),
    "rope_turn": ("q", "k", "v"),
    "select_rows": ("out",),
    "swiglu": ("out",),
    "swiglu_quantize": INT8,
}


def moments(lowered: Lowered) -> set[frozenset[str]]:
    """Which buffers hold something, or come to, at each row."""
    buffers = {name for name, operand in lowered.operands.items() if operand.kind == "buffer"}
    live = {name for name in KEPT if name in buffers}
    found = set()
    for row in reversed(lowered.rows):
        named = {value for value in row.operands.values() if value in buffers}
        found.add(frozenset({*live, *(str(name) for name in named)}))
        made = {row.operands[parameter] for parameter in MADE.get(row.op, ())}
        read = {v for key, v in row.operands.items() if key not in MADE.get(row.op, ())}
        live = {str(name) for name in (live - made) | (named & read)}
    return found


def arranged(lowered: Lowered, sizes: Mapping[str, int]) -> tuple[dict[str, int], int]:
    """The offset of each buffer of a pass, and the bytes that all take, the largest placed first,
    each as low as it can lie."""
    nbytes = {
        name: nbytes_of(operand, sizes)
        for name, operand in lowered.operands.items()
        if operand.kind == "buffer"
    }
    together = moments(lowered)
    offsets: dict[str, int] = {}
    total = 0
    for name in sorted(nbytes, key=lambda name: (-nbytes[name], name)):
        beside = set().union(*(moment for moment in together if name in moment)) & offsets.keys()
        at = 0
        for low, high in sorted((offsets[o], offsets[o] + nbytes[o]) for o in beside):
            if at + nbytes[name] <= low:
                break
            at = max(at, -(-high // ALIGNMENT) * ALIGNMENT)
        offsets[name] = at
        total = max(total, at + nbytes[name])
    return offsets, -(-total // ALIGNMENT) * ALIGNMENT
