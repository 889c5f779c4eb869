"""matmul_int8 for up to 8 tokens on sm_90; see `few`."""

from numba import cuda
from numba.cuda import types

from kernels_cuda import few
from kernels_cuda.few_int8_steps import step_of_one, step_of_tiles
from kernels_cuda.few_sums import put_eight, put_one, total_of
from kernels_cuda.fragments import FRAGMENTS
from kernels_cuda.layouts import STEPS
from kernels_cuda.memory import dynamic_shared, registers
from kernels_cuda.ptx import (
    await_phase,
    grid_go,
    grid_wait,
    load_4,
    load_16,
    put_4,
    put_16,
    quotient,
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
    add = step_of_one(name) if tokens == 1 else step_of_tiles(name, 1, 0, 4 * tokens)
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
        pair = (lane & 3) * (4 if tokens == 1 else 8)
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
                add(sums, r, x, scales, totals)
                x = u32(x + WARPS * step_blocks * 32)
                scales = u32(scales + WARPS * step_blocks * scale_bytes)
                totals = u32(totals + WARPS * step_blocks * scale_bytes)
                place, barrier = u32(place + step_bytes), u32(barrier + 8)
                if barrier == past:
                    place, barrier, parity = ring, barriers, u32(parity ^ u32(1))
            if tokens == 1:
                put_one(part, lane, sums[0], sums[1])
            else:
                put_eight(part, lane, sums)
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
