"""The kernels of `turn`."""

import math

from numba import cuda
from numba.cuda import types

from kernels_cuda.memory import registers
from kernels_cuda.ptx import (
    grid_go,
    grid_wait,
    load_2_f32,
    quotient,
    shuffle_xor,
    store_2_f32,
)
from kernels_cuda.turn import THREADS

f32, i64, u32 = types.float32, types.int64, types.uint32
device = cuda.jit(device=True)


def make(op, head_dim):
    each = head_dim // 32  # components of a lane
    held = registers(each, f32)
    share = f32(1.0 / math.sqrt(head_dim))

    @device
    def turned(x, lane):
        """Mix the components that a warp holds, in the order of llama3jit.ops.hadamard."""
        step = 1
        while step < each:
            for i in range(each):
                if i & step == 0:
                    a, b = x[i], x[i + step]
                    x[i], x[i + step] = a + b, a - b
            step *= 2
        for step in (1, 2, 4, 8, 16):
            for i in range(each):
                other = shuffle_xor(x[i], u32(step))
                x[i] = x[i] + other if lane & step == 0 else other - x[i]
        for i in range(each):
            x[i] *= share

    @device
    def load(x, at):
        for i in range(0, each, 2):
            x[i], x[i + 1] = load_2_f32(at + i * 4)

    @device
    def store(x, at):
        for i in range(0, each, 2):
            store_2_f32(at + i * 4, x[i], x[i + 1])

    def hadamard(x, T, heads, head_dim_):
        grid_go()
        grid_wait()
        at = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        lane, row = at & 31, at >> 5
        if row < T * heads:
            values = held()
            place = x + (row * head_dim + lane * each) * 4
            load(values, place)
            turned(values, lane)
            store(values, place)

    def rope_turn(q, k, v, qkv, turns, T, heads, head_dim_, kv_heads, all_heads, half):
        grid_go()
        grid_wait()
        at = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        lane, row = at & 31, at >> 5
        t = quotient(row, all_heads)
        h = row - t * all_heads
        if t < T:
            values = held()
            load(values, qkv + (row * head_dim + lane * each) * 4)
            for i in range(0, each, 2):
                pair = (lane * each + i) >> 1
                if h < heads + kv_heads and pair < half:
                    turn = load_2_f32(turns + (t * half + pair) * 8)
                    even, odd = values[i], values[i + 1]
                    values[i] = even * turn[0] - odd * turn[1]
                    values[i + 1] = even * turn[1] + odd * turn[0]
            turned(values, lane)
            to = q + (t * heads + h) * (head_dim * 4)
            if h >= heads + kv_heads:
                to = v + (t * kv_heads + h - heads - kv_heads) * (head_dim * 4)
            elif h >= heads:
                to = k + (t * kv_heads + h - heads) * (head_dim * 4)
            store(values, to + lane * each * 4)

    return hadamard if op == "hadamard" else rope_turn
