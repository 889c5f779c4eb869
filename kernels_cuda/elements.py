"""The kernels of `elementwise`."""

import math

from numba import cuda
from numba.cuda import types

from kernels_cuda.memory import matrix_u8
from kernels_cuda.ptx import (
    exp2,
    f32_to_half,
    grid_go,
    grid_wait,
    load_f32,
    load_f64,
    load_i32,
    quotient,
    remainder,
    store_2,
    store_4,
    store_f32,
    two_halves,
)
from llama3jit.ops.dequantise import FORMATS
from llama3jit.ops.faces import Rebuilder

f32, i64 = types.float32, types.int64
BLOCK_TOKENS = 64  # of the cache
BLOCK_SHIFT = 6
LOG2_E = f32(1.4426950408889634)
device = cuda.jit(device=True)


@device
def index():
    """Which thread of the grid this is, once earlier kernels are done."""
    grid_go()
    grid_wait()
    return i64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x


@device
def silu(x):
    """x / (1 + exp(-x))"""
    return x / (f32(1.0) + exp2(-x * LOG2_E))


def add(out, x, rows, n):
    i = index()
    if i < rows * n:
        store_f32(out + i * 4, load_f32(out + i * 4) + load_f32(x + i * 4))


def add_bias(out, bias, rows, n):
    i = index()
    if i < rows * n:
        store_f32(out + i * 4, load_f32(out + i * 4) + load_f32(bias + remainder(i, n) * 4))


def swiglu(out, gate, up, rows, n):
    i = index()
    if i < rows * n:
        store_f32(out + i * 4, silu(load_f32(gate + i * 4)) * load_f32(up + i * 4))


def select_rows(out, x, logits_rows, R, n, T):
    i = index()
    if i < R * n:
        row = load_i32(logits_rows + quotient(i, n) * 4)
        store_f32(out + i * 4, load_f32(x + (row * n + remainder(i, n)) * 4))


def rope_angles(turns, positions, inverse_frequencies, magnitude, T, half):
    i = index()
    if i < T * half:
        position = load_i32(positions + quotient(i, half) * 4)
        angle = position * load_f64(inverse_frequencies + remainder(i, half) * 8)
        store_f32(turns + i * 8, f32(math.cos(angle)) * magnitude)
        store_f32(turns + i * 8 + 4, f32(math.sin(angle)) * magnitude)


def rope(x, turns, T, heads, head_dim, half):
    i = index()
    if i < T * heads * half:
        row = quotient(i, half)
        pair = i - row * half
        at = x + (row * head_dim + 2 * pair) * 4
        turn = turns + (quotient(row, heads) * half + pair) * 8
        even, odd = load_f32(at), load_f32(at + 4)
        cos, sin = load_f32(turn), load_f32(turn + 4)
        store_f32(at, even * cos - odd * sin)
        store_f32(at + 4, even * sin + odd * cos)


def kv_append(
    k_cache,
    v_cache,
    k,
    v,
    positions,
    seq_of,
    block_tables,
    n_blocks,
    heads,
    k_lines,
    block_tokens,
    v_lines,
    v_line,
    T,
    head_dim,
    S,
    B,
):
    i = index()
    if i < T * heads * head_dim:
        row = quotient(i, head_dim)
        t = quotient(row, heads)
        sequence = load_i32(seq_of + t * 4)
        if sequence >= 0:
            position = load_i32(positions + t * 4)
            block = load_i32(block_tables + (sequence * B + (position >> BLOCK_SHIFT)) * 4)
            h = row - t * heads
            at = ((block * heads + h) * block_tokens + (position & (BLOCK_TOKENS - 1))) * head_dim
            at = (at + i - row * head_dim) * 2
            store_2(k_cache + at, f32_to_half(load_f32(k + i * 4)))
            store_2(v_cache + at, f32_to_half(load_f32(v + i * 4)))


def rope_append(
    q,
    k_cache,
    v_cache,
    qkv,
    turns,
    positions,
    seq_of,
    block_tables,
    T,
    heads,
    head_dim,
    n_blocks,
    kv_heads,
    block_tokens,
    all_heads,
    half,
    S,
    B,
):
    grid_go()
    i = i64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    pairs = head_dim >> 1
    row = quotient(i, pairs)
    pair = i - row * pairs
    t = quotient(row, all_heads)
    h = row - t * all_heads
    inside = t < T
    # No kernel writes what the batch is made of.
    sequence, place = i64(-1), i64(0)
    if inside and h >= heads:
        sequence = load_i32(seq_of + t * 4)
        if sequence >= 0:
            position = load_i32(positions + t * 4)
            place = load_i32(block_tables + (sequence * B + (position >> BLOCK_SHIFT)) * 4)
            place = place * kv_heads * block_tokens + (position & (BLOCK_TOKENS - 1))
    grid_wait()
    if inside:
        at = qkv + i * 8
        even, odd = load_f32(at), load_f32(at + 4)
        if h < heads + kv_heads and pair < half:
            turn = turns + (t * half + pair) * 8
            cos, sin = load_f32(turn), load_f32(turn + 4)
            even, odd = even * cos - odd * sin, even * sin + odd * cos
        if h < heads:
            to = q + ((t * heads + h) * pairs + pair) * 8
            store_f32(to, even)
            store_f32(to + 4, odd)
        elif sequence >= 0:
            h -= heads
            cache = k_cache
            if h >= kv_heads:
                h -= kv_heads
                cache = v_cache
            at = place + h * block_tokens
            store_4(cache + (at * pairs + pair) * 4, two_halves(even, odd))


def make_embed(variant):
    """The kernel for a format: any that a portable op reads."""
    bindings = FORMATS[variant]
    value = Rebuilder("cuda", device).compiled(bindings["dequantise"], bindings)

    def embed(out, weight, tokens, T, n_embd, n_vocab, row_bytes):
        i = index()
        if i < T * n_embd:
            row = quotient(i, n_embd)
            token = load_i32(tokens + row * 4)
            rows = matrix_u8(weight, n_vocab, row_bytes)
            store_f32(out + i * 4, value(rows, token, i - row * n_embd))

    return embed
