"""matmul_int8 for few tokens; see `matmul`."""

from numba import cuda
from numba.cuda import types

from kernels_cuda.fragments import FRAGMENTS
from kernels_cuda.layouts import STEPS
from kernels_cuda.memory import registers, shared
from kernels_cuda.ptx import (
    grid_go,
    grid_wait,
    lane_id,
    load_8,
    load_f32,
    mma_int8,
    store_f32,
    stream_16,
)

f32, i64, u32 = types.float32, types.int64, types.uint32
ROWS = 16
device = cuda.jit(device=True)


@device
def nothing(sums, r, x, scales, totals, first, blocks):
    pass


def in_turn(functions):
    """A function that does each of some functions on the same arguments, in order."""
    before = nothing
    for function in functions:
        before = pair(before, function)
    return before


def pair(before, function):
    @device
    def both(sums, r, x, scales, totals, first, blocks):
        before(sums, r, x, scales, totals, first, blocks)
        function(sums, r, x, scales, totals, first, blocks)

    return both


def block(form, j, tiles, columns):
    """Add the products of block j of a step to the sums: 4 for each tile of 8 tokens, as
    `mma_int8` gives them, of which the second and fourth count if there are two columns. `x` are
    addresses of a lane's token of each tile, `scales` and `totals` those of the two tokens of each
    tile that its sums are of."""
    quants, steps = form.quants(j), form.scales(j)
    has_minima = form.minima is not None
    minima = form.minima(j) if has_minima else steps

    @device
    def of_block(sums, r, x, scales, totals, first, blocks):
        at = min(first + j, blocks - 1)
        a = quants(r)
        low, high = steps(r)
        for n in range(tiles):
            b = load_8(x[n] + at * 32)
            d = mma_int8(a[0], a[1], a[2], a[3], b[0], b[1])
            s = load_f32(scales[2 * n] + at * 4)
            sums[4 * n] += d[0] * (low * s)
            sums[4 * n + 2] += d[2] * (high * s)
            if columns == 2:
                s = load_f32(scales[2 * n + 1] + at * 4)
                sums[4 * n + 1] += d[1] * (low * s)
                sums[4 * n + 3] += d[3] * (high * s)
        if has_minima:
            less_low, less_high = minima(r)
            for n in range(tiles):
                total = load_f32(totals[2 * n] + at * 4)
                sums[4 * n] -= less_low * total
                sums[4 * n + 2] -= less_high * total
                if columns == 2:
                    total = load_f32(totals[2 * n + 1] + at * 4)
                    sums[4 * n + 1] -= less_low * total
                    sums[4 * n + 3] -= less_high * total

    return of_block


def block_in_halves(form, j, tiles, columns):
    """The same for a format with scales for each 16 columns, which two of four lanes hold."""
    quants, steps = form.quants(j), (form.scales(j, 0), form.scales(j, 1))
    first_steps, second_steps = steps

    @device
    def of_block(sums, r, x, scales, totals, first, blocks):
        at = min(first + j, blocks - 1)
        a = quants(r)
        upper, none = lane_id() & u32(2), u32(0)
        for n in range(tiles):
            b = load_8(x[n] + at * 32)
            s, t = load_f32(scales[2 * n] + at * 4), load_f32(scales[2 * n + 1] + at * 4)
            b0, b1 = (none, none) if upper else (b[0], b[1])
            d = mma_int8(a[0], a[1], a[2], a[3], b0, b1)
            low, high = first_steps(r)
            sums[4 * n] += d[0] * (low * s)
            sums[4 * n + 1] += d[1] * (low * t)
            sums[4 * n + 2] += d[2] * (high * s)
            sums[4 * n + 3] += d[3] * (high * t)
            b0, b1 = (b[0], b[1]) if upper else (none, none)
            d = mma_int8(a[0], a[1], a[2], a[3], b0, b1)
            low, high = second_steps(r)
            sums[4 * n] += d[0] * (low * s)
            sums[4 * n + 1] += d[1] * (low * t)
            sums[4 * n + 2] += d[2] * (high * s)
            sums[4 * n + 3] += d[3] * (high * t)

    return of_block


def make(name, tokens, warps):
    """The kernel for a format, up to so many tokens, by blocks of so many warps."""
    form, step = FRAGMENTS[name], STEPS[name]
    step_blocks, step_bytes = step.blocks, step.total_bytes
    tiles = max(1, tokens // 8)
    columns = 1 if tokens == 1 else 2
    n_sums = 4 * tiles
    one = block_in_halves if form.in_halves else block
    add = in_turn([one(form, j, tiles, columns) for j in range(step_blocks)])
    load = form.load(stream_16)
    factor = f32(form.factor)
    addresses, pairs = registers(tiles, i64), registers(2 * tiles, i64)
    floats, parts = registers(n_sums, f32), shared(warps * ROWS * 8 * tiles, f32)
    outputs = ROWS * 8 * tiles
    threads = 32 * warps

    def matmul_int8(out, weight, xq, xs, xsum, xtotal, T, N, rows, row_bytes, K, n_blocks, halves):
        grid_go()
        thread = cuda.threadIdx.x
        lane = thread % 32
        warp = thread // 32
        group = i64(cuda.blockIdx.x)
        steps = (n_blocks + step_blocks - 1) // step_blocks
        p = weight + (group * steps + warp) * step_bytes
        # Weights are not written by any kernel: the first ones come while others still run.
        r = load(p, lane) if warp < steps else load(weight, lane)
        grid_wait()
        first_token = i64(cuda.blockIdx.y) * (8 * tiles)
        x, scales, totals, sums = addresses(), pairs(), pairs(), floats()
        for n in range(tiles):
            x[n] = xq + min(first_token + 8 * n + lane // 4, T - 1) * K + lane % 4 * 8
            for c in range(2):
                t = min(first_token + 8 * n + lane % 4 * 2 + c, T - 1)
                scales[2 * n + c] = xs + t * n_blocks * 4
                totals[2 * n + c] = xtotal + t * n_blocks * 4
        for i in range(n_sums):
            sums[i] = f32(0.0)
        for at in range(warp, steps, warps):
            now = r
            p += warps * step_bytes
            if at + warps < steps:
                r = load(p, lane)
            add(sums, now, x, scales, totals, at * step_blocks, n_blocks)
        part = parts()
        for i in range(n_sums):
            row = lane // 4 + i // 2 % 2 * 8
            token = i // 4 * 8 + lane % 4 * 2 + i % 2
            part[(warp * 8 * tiles + token) * ROWS + row] = sums[i]
        cuda.syncthreads()
        for i in range(thread, outputs, threads):
            token = first_token + i // ROWS
            row = group * ROWS + i % ROWS
            if token < T and row < N:
                total = f32(0.0)
                for w in range(warps):
                    total += part[w * outputs + i]
                store_f32(out + (token * N + row) * 4, total * factor)

    return matmul_int8
