"""matmul_int8 for 9 and more tokens on sm_90; see `few`."""

from numba import cuda
from numba.cuda import types

from kernels_cuda import few
from kernels_cuda.few_int8_steps import step_of_tiles
from kernels_cuda.fragments import FRAGMENTS
from kernels_cuda.layouts import STEPS
from kernels_cuda.memory import dynamic_shared, registers
from kernels_cuda.ptx import (
    await_phase,
    barrier_init,
    barriers_visible,
    copy_bulk,
    expect,
    grid_go,
    grid_wait,
    load_4,
    put_4,
    put_f32,
    quotient,
    shared_16,
    shared_f32,
    store_f32,
)
from kernels_cuda.rings import fetch, open_ring

f32, i64, u32 = types.float32, types.int64, types.uint32
ROWS, SLICE, TEAM, WARPS = few.ROWS, few.SLICE, few.TEAM, few.WARPS
BLOCKS = SLICE // 32  # of 32 columns, in a slice
BLOCKS_SHIFT = BLOCKS.bit_length() - 1
THREADS = 32 * WARPS
TEAMS = WARPS // TEAM
PARTIAL = few.BARRIERS
SLICE_BARRIER = few.BARRIERS - 8  # the rings have no barriers there
device = cuda.jit(device=True)


def put_scales(tokens, pitch):
    """The function that puts a slice's scales to shared memory, rows of all tokens `pitch` bytes
    apart for each block, with zeros where there is none."""
    each = BLOCKS * tokens // THREADS
    values_of = registers(each, u32)

    @device
    def put(to, xs, first_token, T, first_block, n_blocks, thread):
        values = values_of()
        for i in range(each):
            at = thread + i * THREADS
            token, b = first_token + (at >> BLOCKS_SHIFT), first_block + (at & (BLOCKS - 1))
            inside = token < T and b < n_blocks
            values[i] = load_4(xs + (token * n_blocks + b) * 4 if inside else xs)
            values[i] = values[i] if inside else u32(0)
        for i in range(each):
            at = thread + i * THREADS
            put_4(u32(to + (at & (BLOCKS - 1)) * pitch + (at >> BLOCKS_SHIFT) * 4), values[i])

    return put


def make(name, tokens):
    """The kernel for a format, for so many tokens at a time."""
    form, shape = FRAGMENTS[name], STEPS[name]
    step_blocks, step_bytes = shape.blocks, shape.total_bytes
    step_shift = step_blocks.bit_length() - 1
    tiles = tokens // 8
    has_minima = form.minima is not None
    pitch, row_bytes = few.pitch_of(tokens), few.SLICE_ROW
    fixed = few.sliced_bytes(tokens, 2 if has_minima else 1)
    stages = few.stages_of(fixed, step_bytes)
    x_offset = PARTIAL + WARPS * ROWS * tokens * 4
    scales_offset = x_offset + tokens * row_bytes
    totals_offset = scales_offset + BLOCKS * pitch if has_minima else scales_offset
    # Turns of all warps of a team that a slice lasts for: one or two.
    turn_columns = TEAM * step_blocks * 32
    turns_shift = (SLICE // turn_columns).bit_length() - 1
    turns_mask = (1 << turns_shift) - 1
    load, add = form.load(shared_16), step_of_tiles(name, tiles, row_bytes, pitch)
    put = put_scales(tokens, pitch)
    factor = f32(form.factor)
    n_sums, outputs = 4 * tiles, ROWS * tokens
    outputs_shift = outputs.bit_length() - 1
    sums_of = registers(2 * n_sums, f32)

    @device
    def put_rows(to, xq, count, K, at, barrier, thread):
        """Start copies of `count` rows' columns from `at` on."""
        size = u32(min(i64(SLICE), K - at))
        if thread < 32:
            if thread == 0:
                expect(barrier, u32(count * size))
            cuda.syncwarp()
            if thread < count:
                copy_bulk(u32(to + thread * row_bytes), xq + thread * K + at, size, barrier)

    def matmul_int8(out, weight, xq, xs, xsum, xtotal, T, N, rows, row_bytes_, K, n_blocks, halves):
        grid_go()
        # Numbers of 32 bits, as registers are few.
        thread = u32(cuda.threadIdx.x)
        lane = u32(thread & 31)
        team, member = u32(thread >> 8), u32((thread >> 5) & (TEAM - 1))
        base = dynamic_shared()
        steps = u32((n_blocks + (step_blocks - 1)) >> step_shift)
        groups, stride = u32((N + (ROWS - 1)) >> 4), u32(cuda.gridDim.x)
        ring = u32(base + fixed + (thread >> 5) * (stages * step_bytes))
        barriers = u32(base + (thread >> 5) * (stages * 8))
        # Of the steps of a group every eighth is this warp's, of the groups every second its team's.
        mine = u32((steps - member + (TEAM - 1)) >> 3)
        group = u32(cuda.blockIdx.x + team * stride)
        left = u32(0)
        if group < groups:
            left = u32(
                quotient(i64(groups - group + TEAMS * stride - 1), i64(TEAMS * stride)) * mine
            )
        open_ring(barriers, stages, lane)
        if thread == 0:
            barrier_init(u32(base + SLICE_BARRIER), u32(1))
            barriers_visible()
        # Weights are not written by any kernel: the first ones come while others still run.
        source = weight + (i64(group) * steps + member) * step_bytes
        jump = (i64(TEAMS * stride) * steps - i64(mine) * TEAM) * step_bytes
        coming = mine
        stage, parity = u32(0), u32(0)
        if lane == 0:
            while stage < stages and left > 0:
                fetch(u32(ring + stage * step_bytes), u32(barriers + stage * 8), source, step_bytes)
                stage = u32(stage + 1)
                left = u32(left - 1)
                source += TEAM * step_bytes
                coming = u32(coming - 1)
                if coming == 0:
                    coming = mine
                    source += jump
            stage = u32(0)
        first_token = u32(cuda.blockIdx.y * tokens)
        xq += first_token * K
        column = u32(member * (step_blocks * 32))
        x_first = u32(base + x_offset + (lane >> 2) * row_bytes + (lane & 3) * 8 + column)
        first = u32((lane & 3) * 8 + member * (step_blocks * pitch))
        slice_parity = u32(0)
        sums = sums_of()
        grid_wait()
        while group < groups + team * stride:
            for i in range(2 * n_sums):
                sums[i] = f32(0.0)
            turn = u32(0)
            while turn * TEAM < steps:
                # Of a row that fits in a slice all columns stay there.
                if turn & turns_mask == 0 and (
                    steps > TEAM * (turns_mask + 1) or group < (team + 1) * stride
                ):
                    cuda.syncthreads()
                    cut, barrier = i64(turn >> turns_shift), u32(base + SLICE_BARRIER)
                    count = min(T - first_token, i64(tokens))
                    put_rows(u32(base + x_offset), xq, count, K, cut * SLICE, barrier, i64(thread))
                    to, first_block = u32(base + scales_offset), cut * BLOCKS
                    put(to, xs, i64(first_token), T, first_block, n_blocks, i64(thread))
                    if has_minima:
                        to = u32(base + totals_offset)
                        put(to, xtotal, i64(first_token), T, first_block, n_blocks, i64(thread))
                    await_phase(barrier, slice_parity)
                    slice_parity = u32(slice_parity ^ u32(1))
                    cuda.syncthreads()
                if group < groups and turn * TEAM + member < steps:
                    place, barrier = u32(ring + stage * step_bytes), u32(barriers + stage * 8)
                    await_phase(barrier, parity)
                    r = load(place, lane)
                    cuda.syncwarp()
                    if lane == 0 and left > 0:
                        fetch(place, barrier, source, step_bytes)
                        left = u32(left - 1)
                        source += TEAM * step_bytes
                        coming = u32(coming - 1)
                        if coming == 0:
                            coming = mine
                            source += jump
                    inside = u32(turn & turns_mask)
                    x = u32(x_first + inside * turn_columns)
                    at = u32(base + first + inside * (TEAM * step_blocks * pitch))
                    add(sums, r, x, u32(at + scales_offset), u32(at + totals_offset))
                    stage = u32(stage + 1)
                    if stage == stages:
                        stage, parity = u32(0), u32(parity ^ u32(1))
                # Turns go to two sums by turns, which 16 warps would have one each of.
                for i in range(n_sums):
                    sums[i], sums[n_sums + i] = sums[n_sums + i], sums[i]
                turn = u32(turn + 1)
            at = u32((member + team * TEAM) * outputs + (lane & 3) * (2 * ROWS) + (lane >> 2))
            for n in range(tiles):
                for i in range(4):
                    to = u32(at * 4 + n * (8 * ROWS * 4) + (i & 1) * (ROWS * 4) + (i >> 1) * 32)
                    value = sums[4 * n + i] + sums[n_sums + 4 * n + i]
                    put_f32(u32(base + PARTIAL + to), value)
            cuda.syncthreads()
            for i in range(TEAMS * outputs // THREADS):
                output = u32(thread + i * THREADS)
                of, output = u32(output >> outputs_shift), u32(output & (outputs - 1))
                total_at = u32(base + PARTIAL + (of * (TEAM * outputs) + output) * 4)
                total = f32(0.0)
                for w in range(TEAM):
                    total += shared_f32(u32(total_at + w * (outputs * 4)))
                token = i64(first_token + (output >> 4))
                n = i64(u32(group + of * stride - team * stride)) * ROWS + (output & 15)
                if token < T and n < N:
                    store_f32(out + (token * N + n) * 4, total * factor)
            cuda.syncthreads()
            group = u32(group + TEAMS * stride)

    matmul_int8.threads = THREADS
    return matmul_int8
