"""hadamard, and the rotation of queries and keys with the turn of all heads after it: a warp takes
a head of a token, each lane some neighbouring components."""

from __future__ import annotations

from kernels_cuda import Launch

THREADS = 256


def launch(op, variant, dims):
    warps = dims["T"] * dims["heads" if op == "hadamard" else "all_heads"]
    return Launch((-(-warps * 32 // THREADS), 1, 1), (THREADS, 1, 1))


def kernel(op, variant):
    from kernels_cuda.turns import make

    return make(op, int(variant.split(":")[1]))
