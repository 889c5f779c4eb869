"""Matrix products with few tokens: the tensor cores multiply 16 rows of the weight by 8 tokens at a
time, warps share the columns, and each weight is read once, from memory to registers.

Up to 8 tokens on sm_90 blocks of threads stay for as long as there are rows (`few`); else a block
takes 16 rows by up to 16 tokens. A token's sums do not depend on the other tokens; the order of the
sums depends on the number of warps alone.
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


def rings_of(op, variant, dims):
    """Bytes before the rings, and of a piece, of a kernel for up to 8 tokens."""
    name, tokens = split(variant)
    columns = dims["K"] if "K" in dims else dims["width"]  # int8 rows are as wide as they are long
    if op == "matmul":
        return few.fixed_bytes(-(-columns // 64) * 64, 0, tokens, 2, 0), 2048
    step = STEPS[name]
    blocks = -(-columns // (32 * step.blocks)) * step.blocks
    arrays = 2 if name in WITH_MINIMA else 1
    return few.fixed_bytes(blocks * 32, blocks, tokens, 1, arrays), step.total_bytes


def fits(op, variant, dims):
    """Whether the activations leave room for rings in shared memory."""
    if split(variant)[1] > 8 or CAPABILITY[0] < (9, 0):
        return True
    fixed, piece = rings_of(op, variant, dims)
    return fixed + few.WARPS * 2 * piece <= few.MOST


def launch(op, variant, dims):
    tokens = split(variant)[1]
    groups = -(-dims["N"] // ROWS)
    if tokens <= 8 and CAPABILITY[0] >= (9, 0):
        fixed, piece = rings_of(op, variant, dims)
        rings = few.WARPS * few.stages_of(fixed, piece) * piece
        blocks = min(groups, PROCESSORS[0])
        return Launch((blocks, 1, 1), (32 * few.WARPS, 1, 1), max(few.LEAST, fixed + rings))
    return Launch((groups, -(-dims["T"] // max(8, tokens)), 1), (32 * WARPS, 1, 1))


def kernel(op, variant):
    name, tokens = split(variant)
    if tokens <= 8 and CAPABILITY[0] >= (9, 0):
        from kernels_cuda import few_halves_rings, few_int8_rings

        module = few_halves_rings if op == "matmul" else few_int8_rings
        return module.make(name, tokens)
    if op == "matmul":
        from kernels_cuda.few_halves import make
    else:
        from kernels_cuda.few_int8 import make
    return make(name, tokens, WARPS)
