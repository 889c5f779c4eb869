"""matmul_int8 for up to 8 tokens on sm_90; see `few`."""

from numba import cuda
from numba.cuda import types

from kernels_cuda import few
from kernels_cuda.few_int8 import in_turn
from kernels_cuda.few_sums import put_eight, put_one, total_of
from kernels_cuda.fragments import FRAGMENTS
from kernels_cuda.layouts import STEPS
from kernels_cuda.memory import dynamic_shared, registers
from kernels_cuda.ptx import (
    await_phase,
    grid_go,
    grid_wait,
    lane_id,
    load_4,
    load_16,
    mma_int8,
    mma_int8_column,
    put_4,
    put_16,
    quotient,
    shared_2_f32,
    shared_4_f32,
    shared_8,
    shared_16,
    store_f32,
)
from kernels_cuda.rings import fetch, open_ring
from llama3jit.ops.faces import Rebuilder

f32, i64, u32 = types.float32, types.int64, types.uint32
ROWS, WARPS = few.ROWS, few.WARPS
WARPS_SHIFT = WARPS.bit_length() - 1
THREADS = 32 * WARPS
PARTIAL = few.BARRIERS
device = cuda.jit(device=True)
rebuilder = Rebuilder("cuda", device)
row_bytes_of, fixed_bytes, stages_of = (
    rebuilder.compiled(function, {})
    for function in (few.row_bytes_of, few.fixed_bytes, few.stages_of)
)


@device
def add_two(sums, d, low, high, scale):
    """Add one token's products of two rows, scaled."""
    sums[0] += d[0] * (low * scale)
    sums[2] += d[1] * (high * scale)


@device
def add_four(sums, d, low, high, scales):
    """Add two tokens' products of two rows, scaled."""
    sums[0] += d[0] * (low * scales[0])
    sums[1] += d[1] * (low * scales[1])
    sums[2] += d[2] * (high * scales[0])
    sums[3] += d[3] * (high * scales[1])


def halves_of_one(form, j):
    """`block_of_one` for a format with scales for each 16 columns, which two of four lanes hold."""
    quants, first, second = form.quants(j), form.scales(j, 0), form.scales(j, 1)

    @device
    def of_block(sums, r, x, scales, totals, one, blocks):
        a = quants(r)
        b = shared_8(x + 32 * j)
        upper = lane_id() & u32(2)
        none = u32(0)
        b0, b1 = (none, none) if upper else (b[0], b[1])
        d = mma_int8_column(a[0], a[1], a[2], a[3], b0, b1)
        low, high = first(r)
        add_two(sums, d, low, high, scales[j])
        b0, b1 = (b[0], b[1]) if upper else (none, none)
        d = mma_int8_column(a[0], a[1], a[2], a[3], b0, b1)
        low, high = second(r)
        add_two(sums, d, low, high, scales[j])

    return of_block


def halves_of_eight(form, j):
    """`block_of_eight` for a format with scales for each 16 columns."""
    quants, first, second = form.quants(j), form.scales(j, 0), form.scales(j, 1)

    @device
    def of_block(sums, r, x, scales, totals, one, blocks):
        a = quants(r)
        b = shared_8(x + 32 * j)
        s = shared_2_f32(scales + 32 * j)
        upper = lane_id() & u32(2)
        none = u32(0)
        b0, b1 = (none, none) if upper else (b[0], b[1])
        d = mma_int8(a[0], a[1], a[2], a[3], b0, b1)
        low, high = first(r)
        add_four(sums, d, low, high, s)
        b0, b1 = (b[0], b[1]) if upper else (none, none)
        d = mma_int8(a[0], a[1], a[2], a[3], b0, b1)
        low, high = second(r)
        add_four(sums, d, low, high, s)

    return of_block


def block_of_one(form, j):
    """Add the products of block j of a step to two sums, of rows l / 4 and 8 more; `x` is the
    address of the step's activations, `scales` and `totals` are its blocks' own."""
    quants, steps = form.quants(j), form.scales(j)
    has_minima = form.minima is not None
    minima = form.minima(j) if has_minima else steps

    @device
    def of_block(sums, r, x, scales, totals, first, blocks):
        a = quants(r)
        low, high = steps(r)
        b = shared_8(x + 32 * j)
        d = mma_int8_column(a[0], a[1], a[2], a[3], b[0], b[1])
        add_two(sums, d, low, high, scales[j])
        if has_minima:
            less_low, less_high = minima(r)
            sums[0] -= less_low * totals[j]
            sums[2] -= less_high * totals[j]

    return of_block


def block_of_eight(form, j):
    """The same for four sums, as `mma_int8` gives them; `scales` and `totals` are addresses."""
    quants, steps = form.quants(j), form.scales(j)
    has_minima = form.minima is not None
    minima = form.minima(j) if has_minima else steps

    @device
    def of_block(sums, r, x, scales, totals, first, blocks):
        a = quants(r)
        low, high = steps(r)
        b = shared_8(x + 32 * j)
        d = mma_int8(a[0], a[1], a[2], a[3], b[0], b[1])
        s = shared_2_f32(scales + 32 * j)
        add_four(sums, d, low, high, s)
        if has_minima:
            less_low, less_high = minima(r)
            s = shared_2_f32(totals + 32 * j)
            sums[0] -= less_low * s[0]
            sums[1] -= less_low * s[1]
            sums[2] -= less_high * s[0]
            sums[3] -= less_high * s[1]

    return of_block


@device
def four_scales(at):
    return shared_4_f32(at)


@device
def eight_scales(at):
    return shared_4_f32(at) + shared_4_f32(u32(at + 16))


@device
def address(at):
    return at


@device
def put_rows(to, xq, T, K, columns, thread):
    """Rows of int8 to shared memory, with zeros up to so many columns."""
    row_bytes = row_bytes_of(columns, 1)
    for t in range(T):
        at = u32(to + t * row_bytes + thread * 16)
        for c in range(thread * 16, columns, THREADS * 16):
            if c < K:
                # A row is some blocks of 32 bytes, so pieces are aligned.
                r = load_16(xq + t * K + c)
                put_16(at, r[0], r[1], r[2], r[3])
            else:
                put_16(at, u32(0), u32(0), u32(0), u32(0))
            at = u32(at + THREADS * 16)


@device
def put_scales(to, xs, T, n_blocks, blocks, tokens, thread):
    """Scales [T, n_blocks] to shared memory as [blocks, tokens], with zeros where there is none."""
    for t in range(tokens):
        for b in range(thread, blocks, THREADS):
            value = u32(0)
            if t < T and b < n_blocks:
                value = load_4(xs + (t * n_blocks + b) * 4)
            put_4(u32(to + (b * tokens + t) * 4), value)


def make(name, tokens):
    """The kernel for a format, for 1 or for up to 8 tokens."""
    form, step = FRAGMENTS[name], STEPS[name]
    step_blocks, step_bytes = step.blocks, step.total_bytes
    block = block_of_one if tokens == 1 else block_of_eight
    if form.in_halves:
        block = halves_of_one if tokens == 1 else halves_of_eight
    add = in_turn([block(form, j) for j in range(step_blocks)])
    scales_of = {4: four_scales, 8: eight_scales}[step_blocks] if tokens == 1 else address
    put_sums = put_one if tokens == 1 else put_eight
    load = form.load(shared_16)
    factor = f32(form.factor)
    # Without minima nothing reads the totals, which then are any numbers.
    has_minima = form.minima is not None
    arrays = 2 if has_minima else 1
    floats = registers(4, f32)
    outputs = ROWS * tokens
    scale_bytes = 4 * tokens
    step_shift = step_blocks.bit_length() - 1

    def matmul_int8(out, weight, xq, xs, xsum, xtotal, T, N, rows, row_bytes, K, n_blocks, halves):
        grid_go()
        thread = i64(cuda.threadIdx.x)
        lane, warp = thread & 31, thread >> 5
        base = i64(dynamic_shared())
        steps = (n_blocks + (step_blocks - 1)) >> step_shift
        blocks = steps << step_shift
        groups = (N + (ROWS - 1)) >> 4
        fixed = fixed_bytes(blocks * 32, blocks, tokens, 1, arrays)
        stages = stages_of(fixed, step_bytes)
        x_at = base + PARTIAL + 2 * WARPS * outputs * 4
        scales_at = x_at + tokens * row_bytes_of(blocks * 32, 1)
        totals_at = scales_at + blocks * scale_bytes if has_minima else scales_at
        ring = u32(base + fixed + warp * stages * step_bytes)
        barriers = u32(base + warp * stages * 8)
        past = u32(barriers + stages * 8)
        # Of the steps of a group every sixteenth is this warp's.
        mine = (steps - warp + (WARPS - 1)) >> WARPS_SHIFT
        group, stride = i64(cuda.blockIdx.x), i64(cuda.gridDim.x)
        left = quotient(groups - group + stride - 1, stride) * mine
        open_ring(barriers, stages, lane)
        # Weights are not written by any kernel: the first ones come while others still run.
        source = weight + (group * steps + warp) * step_bytes
        jump = (stride * steps - mine * WARPS) * step_bytes
        coming = mine
        place, barrier, parity = ring, barriers, u32(0)
        if lane == 0:
            while barrier != past and left > 0:
                fetch(place, barrier, source, step_bytes)
                place, barrier = u32(place + step_bytes), u32(barrier + 8)
                left -= 1
                source += WARPS * step_bytes
                coming -= 1
                if coming == 0:
                    coming = mine
                    source += jump
            place, barrier = ring, barriers
        grid_wait()
        # By different warps where there are few, so that they wait for memory at the same time.
        put_rows(x_at, xq, T, K, blocks * 32, thread)
        turned = (thread + THREADS // 2) & (THREADS - 1)
        put_scales(scales_at, xs, T, n_blocks, blocks, tokens, turned)
        if has_minima:
            turned = (thread + THREADS // 4) & (THREADS - 1)
            put_scales(totals_at, xtotal, T, n_blocks, blocks, tokens, turned)
        cuda.syncthreads()
        first = warp * step_blocks
        x_first = u32(
            x_at
            + min(lane >> 2, T - 1) * row_bytes_of(blocks * 32, 1)
            + (lane & 3) * 8
            + first * 32
        )
        pair = i64(0) if tokens == 1 else (lane & 3) * 8
        scales_first = u32(scales_at + pair + first * scale_bytes)
        totals_first = u32(totals_at + pair + first * scale_bytes)
        row = lane >> 2
        at = row if tokens == 1 else (lane & 3) * (2 * ROWS) + row
        part = u32(base + PARTIAL + (warp * outputs + at) * 4)
        total_at = u32(base + PARTIAL + thread * 4)
        other = u32(WARPS * outputs * 4)
        token, n = thread >> 4, group * ROWS + (thread & 15)
        stores = thread < outputs and token < T
        to = out + (token * N + n) * 4
        sums = floats()
        while group < groups:
            for i in range(4):
                sums[i] = f32(0.0)
            x, scales, totals = x_first, scales_first, totals_first
            for _ in range(mine):
                await_phase(barrier, parity)
                r = load(place, lane)
                cuda.syncwarp()
                if lane == 0 and left > 0:
                    fetch(place, barrier, source, step_bytes)
                    left -= 1
                    source += WARPS * step_bytes
                    coming -= 1
                    if coming == 0:
                        coming = mine
                        source += jump
                add(sums, r, x, scales_of(scales), scales_of(totals), 0, 0)
                x = u32(x + WARPS * step_blocks * 32)
                scales = u32(scales + WARPS * step_blocks * scale_bytes)
                totals = u32(totals + WARPS * step_blocks * scale_bytes)
                place, barrier = u32(place + step_bytes), u32(barrier + 8)
                if barrier == past:
                    place, barrier, parity = ring, barriers, u32(parity ^ u32(1))
            put_sums(part, lane, sums)
            cuda.syncthreads()
            if stores and n < N:
                store_f32(to, total_of(total_at, outputs) * factor)
            # The sums of the next round go elsewhere: some threads may still read these.
            part, total_at = u32(part + other), u32(total_at + other)
            other = u32(-other)
            n += stride * ROWS
            to += stride * (ROWS * 4)
            group += stride

    return matmul_int8
