"""Matrix products with few tokens: the tensor cores multiply 16 rows of the weight by 8 tokens at a
time, warps share the columns, and each weight is read once, from memory to registers.

On sm_90 blocks of threads stay for as long as there are rows (`few`), but for more than 8 tokens of
floats; else a block takes 16 rows by its tokens. A token's sums do not depend on the other tokens,
nor, with int8 on sm_90, on how many there are.
"""

from __future__ import annotations

from kernels_cuda import CAPABILITY, PROCESSORS, Launch, few
from kernels_cuda.layouts import STEPS

ROWS = 16
# Warps of a block.
WARPS = 8
WITH_MINIMA = ("q4_1", "q4_k", "q5_k")


def split(variant):
    name, _, tokens = variant.partition(":")
    return name, int(tokens)


def stays(op, variant):
    """Whether a kernel's blocks stay for as long as there are rows."""
    return CAPABILITY[0] >= (9, 0) and (op == "matmul_int8" or split(variant)[1] <= 8)


def rings_of(op, variant, dims):
    """Bytes before the rings, and of a piece, of a kernel whose blocks stay."""
    name, tokens = split(variant)
    if tokens > 8:
        arrays = 2 if name in WITH_MINIMA else 1
        return few.slices_bytes(arrays), STEPS[name].total_bytes
    columns = dims["K"] if "K" in dims else dims["width"]  # int8 rows are as wide as they are long
    if op == "matmul":
        return few.fixed_bytes(-(-columns // 64) * 64, 0, tokens, 2, 0), 2048
    step = STEPS[name]
    blocks = -(-columns // (32 * step.blocks)) * step.blocks
    arrays = 2 if name in WITH_MINIMA else 1
    return few.fixed_bytes(blocks * 32, blocks, tokens, 1, arrays), step.total_bytes


def fits(op, variant, dims):
    """Whether the activations leave room for rings in shared memory."""
    if not stays(op, variant):
        return True
    fixed, piece = rings_of(op, variant, dims)
    return fixed + few.WARPS * 2 * piece <= few.MOST


def launch(op, variant, dims):
    tokens = split(variant)[1]
    groups = -(-dims["N"] // ROWS)
    parts = -(-dims["T"] // max(8, tokens))
    if stays(op, variant):
        fixed, piece = rings_of(op, variant, dims)
        rings = few.WARPS * few.stages_of(fixed, piece) * piece
        # All parts at the same time, so that one reads what another has brought into the L2 cache.
        blocks = min(groups, max(1, PROCESSORS[0] // parts))
        return Launch((blocks, parts, 1), (32 * few.WARPS, 1, 1), max(few.LEAST, fixed + rings))
    return Launch((groups, parts, 1), (32 * WARPS, 1, 1))


def kernel(op, variant):
    name, tokens = split(variant)
    if stays(op, variant):
        from kernels_cuda import few_halves_rings, few_int8_rings, few_int8_slices

        if tokens > 8:
            return few_int8_slices.make(name)
        return (few_halves_rings if op == "matmul" else few_int8_rings).make(name, tokens)
    if op == "matmul":
        from kernels_cuda.few_halves import make
    else:
        from kernels_cuda.few_int8 import make
    return make(name, tokens, WARPS)
