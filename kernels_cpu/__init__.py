"""CPU kernels: vector types and atomics as numba intrinsics, the walker, and tuned ops."""
