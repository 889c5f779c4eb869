"""Matrix products with few tokens, up to 64: a block of threads takes 16 rows of the weight, its
warps share the columns, and the tensor cores multiply 16 rows by 8 tokens at a time.

Each weight is read once, from memory to registers. Tokens past the last one repeat it and are not
stored. A token's sums do not depend on the other tokens, and the order of the sums depends on the
number of warps alone.
"""

from __future__ import annotations

from kernels_cuda import Launch

ROWS = 16
# Warps of a block.
WARPS = {"1": 8, "8": 8, "16": 8, "32": 8, "64": 4}


def split(variant):
    name, _, tokens = variant.partition(":")
    return name, tokens


def launch(op, variant, dims):
    warps = WARPS[split(variant)[1]]
    return Launch((-(-dims["N"] // ROWS), 1, 1), (32 * warps, 1, 1))


def kernel(op, variant):
    name, tokens = split(variant)
    if op == "matmul":
        from kernels_cuda.few_halves import make
    else:
        from kernels_cuda.few_int8 import make
    return make(name, int(tokens), WARPS[tokens])
