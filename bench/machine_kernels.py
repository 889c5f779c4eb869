"""What a machine can do at most, as ops that the pool's threads share: reading memory, and products
from registers. And an op that reads the clock, to put between the rows of a pass."""

from __future__ import annotations

import numpy as np
from numba import types

from kernels_cpu import features
from kernels_cpu.simd import fma, prefetch, splat_f32, store_f32
from kernels_cpu.simd_int import (
    CHARS,
    add_u8,
    dot4,
    load_u8,
    splat_i32,
    spread_i32,
    store_i8,
)
from kernels_cpu.vectors import (
    ARRAY,
    INT64,
    call,
    constant,
    f32_registers,
    i32_registers,
    operation,
    u8x64,
)
from llama3jit.ops.op import AS_WRITTEN, op

LINE = 64  # bytes of a cache line, and of a load
PIECE = 2**15  # bytes of an item
SUMS = 24 if features.has("avx512f") else 8  # registers
LANES = 16


@operation(u8x64)
def zero_bytes(builder):
    return constant(CHARS, 0)


@operation(types.void, ARRAY, types.intp, u8x64)
def store_u8(builder, array, offset, value):
    array.store(offset, value)


@operation(types.int64)
def cycles(builder):
    """The processor's counter of time."""
    return call(builder, "llvm.readcyclecounter", INT64)


@op(variants={"": {"AHEAD": 0}, "ahead": {"AHEAD": 2048}}, fastmath=AS_WRITTEN)
def sweep(out: u8[pieces, 64], data: u8[n_bytes], items: pieces):
    """Read the data by loads of 64 bytes, an item at a time; out[i] has the sums of piece i. The
    variant "ahead" asks for what comes 2 KiB later, about as the kernels of one token do."""
    for item in items:
        at = item * PIECE
        end = min(at + PIECE, data.shape[0])
        a = zero_bytes()
        b = zero_bytes()
        while at + 2 * LINE <= end:
            if AHEAD:
                prefetch(data, at + AHEAD)
                prefetch(data, at + AHEAD + LINE)
            a = add_u8(a, load_u8(data, at))
            b = add_u8(b, load_u8(data, at + LINE))
            at += 2 * LINE
        store_u8(out, item * LINE, add_u8(a, b))


@op(fastmath=AS_WRITTEN)
def int8_peak(out: i8[tasks, width], x: u8[64], rounds: i64, items: tasks):
    """`rounds` times a dot product of bytes into each of SUMS registers, 128 operations each."""
    for item in items:
        u = load_u8(x, 0)
        s = spread_i32(x, 0)
        sums = i32_registers(SUMS)
        for i in range(SUMS):
            sums[i] = splat_i32(np.int32(0))
        for _ in range(rounds):
            for i in range(SUMS):
                sums[i] = dot4(sums[i], u, s)
            # Or else what a product is made of would be computed once.
            u = add_u8(u, u)
        for i in range(SUMS):
            store_i8(out, item * out.shape[1] + i * LANES, sums[i])


@op(fastmath=AS_WRITTEN)
def f32_peak(out: f32[tasks, width], rounds: i64, items: tasks):
    """`rounds` times a fused product and sum into each of SUMS registers, 32 operations each."""
    for item in items:
        x = splat_f32(np.float32(0.5))
        sums = f32_registers(SUMS)
        for i in range(SUMS):
            sums[i] = splat_f32(np.float32(i))
        for _ in range(rounds):
            for i in range(SUMS):
                sums[i] = fma(sums[i], x, x)
        for i in range(SUMS):
            store_f32(out, item * out.shape[1] + i * LANES, sums[i])


@op(fastmath=AS_WRITTEN)
def stamp(out: i64[n], at: i64, items: 1):
    """out[at] = the counter of time."""
    for _ in items:
        out[at] = cycles()
