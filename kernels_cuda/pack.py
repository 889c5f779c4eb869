"""pack: weights as they lie in a file, to the order that the products take (`fragments`, `tiles`).

Each thread makes 16 bytes; nothing is requantised. Scales are padded by zeros, and so is what they
would multiply.
"""

from __future__ import annotations

from kernels_cuda import FLOATS, Launch
from kernels_cuda.layouts import STEPS, packed_shape

__all__ = ["kernel", "launch", "packed_shape"]

THREADS = 256


def launch(op, variant, dims):
    return Launch((-(-dims["size"] // (16 * THREADS)), 1, 1), (THREADS, 1, 1))


def kernel(op, variant):
    from kernels_cuda import packing

    if variant in FLOATS:
        return packing.make_tiles()
    return packing.make_fragments(variant, STEPS[variant])
