"""CPU kernels: vector types and atomics as numba intrinsics, the walker, and tuned ops."""

# Op -> the module that holds its tuned kernel, and the variants that it has there.
TUNED = {
    "attention": ("kernels_cpu.attention", ("f16", "f32")),
    "matmul": ("kernels_cpu.matmul", ("f32", "f16", "bf16", "q4_0", "q4_1", "q8_0")),
    "matmul_int8": ("kernels_cpu.matmul", ("q4_0", "q4_1", "q8_0")),
    "pack": ("kernels_cpu.pack", ("f32", "f16", "bf16", "q4_0", "q4_1", "q8_0")),
    "quantize": ("kernels_cpu.quantize", ("",)),
    "swiglu": ("kernels_cpu.swiglu", ("",)),
}
