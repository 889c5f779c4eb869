"""What a warp adds to its sums in a step of int8 products on sm_90: 16 rows of some blocks of the
weight, in registers, times activations in shared memory.

A step's sum of an output is that of four parts, each of every fourth block in order, added as
(first + second) + (third + fourth); it is the same for any number of tokens.
"""

from numba import cuda
from numba.cuda import types

from kernels_cuda.fragments import FRAGMENTS
from kernels_cuda.layouts import STEPS
from kernels_cuda.memory import registers
from kernels_cuda.ptx import (
    lane_id,
    mma_int8,
    mma_int8_shifted,
    shared_2_f32,
    shared_8,
    shared_f32,
    shuffle_xor,
)
from kernels_cuda.quads import QUADS, picked

f32, u32 = types.float32, types.uint32
SHIFT = f32(12582912.0)  # what mma_int8_shifted adds
AT_ONCE = 2  # tiles of 8 tokens whose parts a warp holds
device = cuda.jit(device=True)


@device
def nothing(sums, r, x, scales, totals):
    pass


def in_turn(functions):
    """A function that does each of some functions on the same arguments, in order."""
    before = nothing
    for function in functions:
        before = pair(before, function)
    return before


def pair(before, function):
    @device
    def both(sums, r, x, scales, totals):
        before(sums, r, x, scales, totals)
        function(sums, r, x, scales, totals)

    return both


@device
def whole(b, upper):
    return b


@device
def first_half(b, upper):
    """Columns 0 to 15 of a block, which the first two of four lanes hold, and zeros."""
    return (u32(0), u32(0)) if upper else (b[0], b[1])


@device
def second_half(b, upper):
    return (b[0], b[1]) if upper else (u32(0), u32(0))


def of_block(form, j):
    """The ways in which block j is multiplied: which columns of it, and their scales."""
    if form.in_halves:
        return [(first_half, form.scales(j, 0)), (second_half, form.scales(j, 1))]
    return [(whole, form.scales(j))]


def of_quad(form, quad, g):
    """The same for the g-th four blocks and the scales of a lane's."""
    if form.in_halves:
        return [(first_half, quad.scales(g, 0)), (second_half, quad.scales(g, 1))]
    return [(whole, quad.scales(g))]


def four_of_one(quants, g, columns, scales):
    """Add one token's products of four blocks, or of the half of them that `columns` takes, to the
    parts of two rows: a lane adds its block's."""
    first, second, third, fourth = quants

    @device
    def product(a, b, upper):
        b = columns(b, upper)
        return mma_int8_shifted(a[0], a[1], a[2], a[3], b[0], b[1])

    @device
    def add(parts, r, x, at, totals):
        lane = lane_id() & u32(3)
        upper = lane & u32(2)
        d = product(first(r), shared_8(x), upper)
        e = product(second(r), shared_8(u32(x + 32)), upper)
        f = product(third(r), shared_8(u32(x + 64)), upper)
        g = product(fourth(r), shared_8(u32(x + 96)), upper)
        low, high = scales(r, lane)
        s = shared_f32(at)
        parts[0] += (picked(lane, d[0], e[0], f[0], g[0]) - SHIFT) * (low * s)
        parts[1] += (picked(lane, d[1], e[1], f[1], g[1]) - SHIFT) * (high * s)

    return add


def minima_of_one(minima):
    @device
    def add(parts, r, x, at, totals):
        low, high = minima(r, lane_id() & u32(3))
        total = shared_f32(totals)
        parts[0] -= low * total
        parts[1] -= high * total

    return add


def moved(add, g):
    """`add` for the g-th four blocks of a step."""

    @device
    def there(parts, r, x, at, totals):
        add(parts, r, u32(x + 128 * g), u32(at + 16 * g), u32(totals + 16 * g))

    return there


def step_of_one(name):
    """The function that adds a step of one token's products to two sums, of rows l / 4 and 8 more,
    in every lane. `x` is the address of the lane's columns of the step, `scales` and `totals` are
    those of the first block's own plus 4 times the lane's number in its row."""
    form, quad = FRAGMENTS[name], QUADS[name]
    adds = []
    for g in range(STEPS[name].blocks // 4):
        quants = [form.quants(4 * g + i) for i in range(4)]
        ways = of_quad(form, quad, g)
        adds += [moved(four_of_one(quants, g, *way), g) for way in ways]
        if quad.minima is not None:
            adds.append(moved(minima_of_one(quad.minima(g)), g))
    add, parts_of = in_turn(adds), registers(2, f32)

    @device
    def step(sums, r, x, scales, totals):
        parts = parts_of()
        parts[0], parts[1] = f32(0.0), f32(0.0)
        add(parts, r, x, scales, totals)
        for i in range(2):
            part = parts[i] + shuffle_xor(parts[i], u32(1))
            sums[i] += part + shuffle_xor(part, u32(2))

    return step


def block_of_tiles(form, j, columns, scales, tiles, row_bytes, pitch):
    """Add the products of block j, or of a half of it, to 16 parts for each tile of 8 tokens."""
    quants, at = form.quants(j), 4 * (j % 4)

    @device
    def add(parts, r, x, scale, totals):
        a = quants(r)
        low, high = scales(r)
        upper = lane_id() & u32(2)
        for n in range(tiles):
            b = columns(shared_8(u32(x + n * (8 * row_bytes) + 32 * j)), upper)
            d = mma_int8(a[0], a[1], a[2], a[3], b[0], b[1])
            s = shared_2_f32(u32(scale + j * pitch + 32 * n))
            i = 16 * n + at
            parts[i] += d[0] * (low * s[0])
            parts[i + 1] += d[1] * (low * s[1])
            parts[i + 2] += d[2] * (high * s[0])
            parts[i + 3] += d[3] * (high * s[1])

    return add


def minima_of_tiles(form, j, tiles, pitch):
    minima, at = form.minima(j), 4 * (j % 4)

    @device
    def add(parts, r, x, scale, totals):
        low, high = minima(r)
        for n in range(tiles):
            s = shared_2_f32(u32(totals + j * pitch + 32 * n))
            i = 16 * n + at
            parts[i] -= low * s[0]
            parts[i + 1] -= low * s[1]
            parts[i + 2] -= high * s[0]
            parts[i + 3] -= high * s[1]

    return add


def step_of_tiles(name, tiles, row_bytes, pitch):
    """The function that adds a step of the products of `tiles` times 8 tokens to their sums, four
    for each tile as `mma_int8` gives them. Rows of activations lie `row_bytes` apart, scales of
    blocks `pitch`."""
    form = FRAGMENTS[name]
    at_once = min(tiles, AT_ONCE)
    adds = []
    for j in range(STEPS[name].blocks):
        ways = of_block(form, j)
        adds += [block_of_tiles(form, j, *way, at_once, row_bytes, pitch) for way in ways]
        if form.minima is not None:
            adds.append(minima_of_tiles(form, j, at_once, pitch))
    add, parts_of = in_turn(adds), registers(16 * at_once, f32)

    @device
    def some(sums, first, r, x, scales, totals):
        parts = parts_of()
        for i in range(16 * at_once):
            parts[i] = f32(0.0)
        add(parts, r, x, scales, totals)
        for n in range(at_once):
            for i in range(4):
                k = 16 * n + i
                sums[first + 4 * n + i] += (parts[k] + parts[k + 4]) + (
                    parts[k + 8] + parts[k + 12]
                )

    @device
    def step(sums, r, x, scales, totals):
        for n in range(0, tiles, at_once):
            some(
                sums,
                4 * n,
                r,
                u32(x + n * (8 * row_bytes)),
                u32(scales + 32 * n),
                u32(totals + 32 * n),
            )

    return step
