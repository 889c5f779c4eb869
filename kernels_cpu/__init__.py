"""CPU kernels: vector types and atomics as numba intrinsics, the walker, and tuned ops."""

# Block formats with a tuned kernel.
QUANTISED = (
    "q4_0",
    "q4_1",
    "q5_0",
    "q5_1",
    "q8_0",
    "q2_k",
    "q3_k",
    "q4_k",
    "q5_k",
    "q6_k",
    "iq4_nl",
    "iq4_xs",
    "mxfp4",
)

# Op -> the module that holds its tuned kernel, and the variants that it has there.
TUNED = {
    "attention": ("kernels_cpu.attention", ("f16", "f32", "q8_0", "q4_0")),
    "attention_chunks": ("kernels_cpu.split_attention", ("f16", "f32", "q8_0", "q4_0")),
    "attention_merge": ("kernels_cpu.split_attention", ("",)),
    "hadamard": ("kernels_cpu.hadamard", ("",)),
    "kv_append": ("kernels_cpu.kv_append", ("q8_0", "q4_0")),
    "matmul": ("kernels_cpu.matmul", ("f32", "f16", "bf16", *QUANTISED)),
    "matmul_int8": ("kernels_cpu.matmul", QUANTISED),
    "pack": ("kernels_cpu.pack", ("f32", "f16", "bf16", *QUANTISED)),
    "quantize": ("kernels_cpu.quantize", ("",)),
    "rmsnorm": ("kernels_cpu.rmsnorm", ("",)),
    "swiglu": ("kernels_cpu.swiglu", ("",)),
}
