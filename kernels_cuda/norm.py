"""RMS normalisation, alone or with its neighbours: the residual sum before it, int8 after it. A
block of threads takes a row."""

from __future__ import annotations

from kernels_cuda import Launch

# So few that a block of the next product fits beside them.
THREADS = 512
WARPS = THREADS // 32


def launch(op, variant, dims):
    return Launch((dims["rows"] if op == "rmsnorm" else dims["T"], 1, 1), (THREADS, 1, 1))


def kernel(op, variant):
    from kernels_cuda import norms

    return getattr(norms, op)
