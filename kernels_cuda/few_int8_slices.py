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
    copies_come,
    copies_go,
    copy_4,
    copy_16,
    grid_go,
    grid_wait,
    put_f32,
    quotient,
    shared_16,
    shared_f32,
    store_f32,
)
from kernels_cuda.rings import fetch, open_ring

f32, i64, u32 = types.float32, types.int64, types.uint32
ROWS, SLICE, TEAM, TOKENS, WARPS = few.ROWS, few.SLICE, few.TEAM, few.TOKENS, few.WARPS
SLICE_ROW, PITCH, SLICE_SCALES = few.SLICE_ROW, few.PITCH, few.SLICE_SCALES
SLICE_SHIFT = SLICE.bit_length() - 1
BLOCKS = SLICE // 32  # of 32 columns, in a slice
BLOCKS_SHIFT = BLOCKS.bit_length() - 1
PIECES_SHIFT = SLICE_SHIFT - 4  # pieces of 16 bytes of a token's slice
PIECES, PIECES_MASK = TOKENS << PIECES_SHIFT, (1 << PIECES_SHIFT) - 1
THREADS = 32 * WARPS
TEAMS = WARPS // TEAM
OUTPUTS = ROWS * TOKENS  # of a team
OUTPUTS_SHIFT = OUTPUTS.bit_length() - 1
TILES = TOKENS // 8
SUMS = 4 * TILES
PARTIAL = few.BARRIERS
X = PARTIAL + WARPS * OUTPUTS * 4
SCALES = X + 2 * TOKENS * SLICE_ROW
TOTALS = SCALES + 2 * SLICE_SCALES
sums_of = registers(SUMS, f32)
one_has_come, all_have_come = copies_come[1], copies_come[0]
device = cuda.jit(device=True)


@device
def start_rows(to, xq, count, K, first_column, thread):
    """Start copies of a slice of `count` rows."""
    for i in range(PIECES // THREADS):
        at = thread + i * THREADS
        token, column = at >> PIECES_SHIFT, (at & PIECES_MASK) * 16
        if token < count and first_column + column < K:
            source = xq + token * K + first_column + column
            copy_16(u32(to + token * SLICE_ROW + column), source, u32(16))


@device
def start_scales(to, xs, count, n_blocks, first_block, thread):
    """Start copies of a slice's scales [count, n_blocks] to [blocks, tokens], with zeros where
    there is none."""
    for i in range(BLOCKS * TOKENS // THREADS):
        at = thread + i * THREADS
        token, b = at >> BLOCKS_SHIFT, at & (BLOCKS - 1)
        inside = token < count and first_block + b < n_blocks
        source = xs + (token * n_blocks + first_block + b) * 4 if inside else xs
        copy_4(u32(to + b * PITCH + token * 4), source, u32(4) if inside else u32(0))


@device
def kept(part, i):
    """Where a thread keeps its i-th sum, as `mma_int8` numbers them: among those of 16 rows for
    each token of each tile."""
    return u32(part + (i >> 2) * (8 * ROWS * 4) + (i & 1) * (ROWS * 4) + ((i >> 1) & 1) * 32)


def slices(has_minima):
    """The function that starts the copies of a slice to the place for it."""

    @device
    def start(base, cut, place, xq, xs, xtotal, count, K, n_blocks, thread):
        first_block = i64(cut * BLOCKS)
        rows_at = base + X + place * (TOKENS * SLICE_ROW)
        start_rows(rows_at, xq, count, K, i64(cut * SLICE), thread)
        moved = base + place * SLICE_SCALES
        start_scales(moved + SCALES, xs, count, n_blocks, first_block, thread)
        if has_minima:
            start_scales(moved + TOTALS, xtotal, count, n_blocks, first_block, thread)

    return start


def make(name):
    """The kernel for a format."""
    form, shape = FRAGMENTS[name], STEPS[name]
    step_blocks, step_bytes = shape.blocks, shape.total_bytes
    step_shift = step_blocks.bit_length() - 1
    has_minima = form.minima is not None
    fixed = few.slices_bytes(2 if has_minima else 1)
    stages = few.stages_of(fixed, step_bytes)
    # A turn of all warps of a team takes a slice or half of one.
    turn_columns = TEAM * step_blocks * 32
    turns_shift = (SLICE // turn_columns).bit_length() - 1
    turns_mask = (1 << turns_shift) - 1
    load, add = form.load(shared_16), step_of_tiles(name, TILES, SLICE_ROW, PITCH)
    start = slices(has_minima)
    factor = f32(form.factor)

    def matmul_int8(out, weight, xq, xs, xsum, xtotal, T, N, rows, row_bytes, K, n_blocks, halves):
        grid_go()
        # Numbers of 32 bits, as registers are few.
        thread = u32(cuda.threadIdx.x)
        lane = u32(thread & 31)
        team, member = u32(thread >> 8), u32((thread >> 5) & (TEAM - 1))
        base = dynamic_shared()
        steps = u32((n_blocks + (step_blocks - 1)) >> step_shift)
        n_slices = u32((n_blocks + (BLOCKS - 1)) >> BLOCKS_SHIFT)
        groups, stride = u32((N + (ROWS - 1)) >> 4), u32(cuda.gridDim.x)
        ring = u32(base + fixed + (thread >> 5) * (stages * step_bytes))
        barriers = u32(base + (thread >> 5) * (stages * 8))
        # Of the steps of a group every eighth is this warp's, of groups every second its team's.
        mine = u32((steps - member + (TEAM - 1)) >> 3)
        group = u32(cuda.blockIdx.x + team * stride)
        left = u32(0)
        if group < groups:
            ahead = i64(groups - group + TEAMS * stride - 1)
            left = u32(quotient(ahead, i64(TEAMS * stride)) * mine)
        open_ring(barriers, stages, lane)
        # Weights are not written by any kernel: the first ones come while others still run.
        source = weight + (i64(group) * steps + member) * step_bytes
        jump = u32((TEAMS * stride * steps - mine * TEAM) * step_bytes)
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
                    source += i64(jump)
            stage = u32(0)
        first_token = u32(cuda.blockIdx.y * TOKENS)
        count = u32(min(T - first_token, i64(TOKENS)))
        xq += first_token * K
        xs += first_token * n_blocks * 4
        xtotal += first_token * n_blocks * 4
        column = u32(member * (step_blocks * 32))
        x_first = u32(base + X + (lane >> 2) * SLICE_ROW + (lane & 3) * 8 + column)
        first = u32(base + (lane & 3) * 8 + member * (step_blocks * PITCH))
        at = u32((thread >> 5) * OUTPUTS + (lane & 3) * (2 * ROWS) + (lane >> 2))
        part = u32(base + PARTIAL + at * 4)
        sums, odd = sums_of(), u32(0)
        grid_wait()
        start(base, u32(0), u32(0), xq, xs, xtotal, i64(count), K, n_blocks, i64(thread))
        copies_go()
        if n_slices > 1:
            start(base, u32(1), u32(1), xq, xs, xtotal, i64(count), K, n_blocks, i64(thread))
        copies_go()
        while group < groups + team * stride:
            for i in range(SUMS):
                sums[i] = f32(0.0)
                put_f32(kept(part, i), f32(0.0))
            turn = u32(0)
            while turn * TEAM < steps:
                if turn & turns_mask == 0 and (n_slices > 2 or group < (team + 1) * stride):
                    one_has_come()
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
                            source += i64(jump)
                    inside = u32(turn & turns_mask)
                    x = u32(x_first + odd * (TOKENS * SLICE_ROW) + inside * turn_columns)
                    at = u32(first + odd * SLICE_SCALES)
                    at = u32(at + inside * (TEAM * step_blocks * PITCH))
                    add(sums, r, x, u32(at + SCALES), u32(at + TOTALS))
                    stage = u32(stage + 1)
                    if stage == stages:
                        stage, parity = u32(0), u32(parity ^ u32(1))
                turn = u32(turn + 1)
                if turn & turns_mask == 0 or turn * TEAM >= steps:
                    if n_slices > 2:
                        # The slice after the next one takes this one's place.
                        cuda.syncthreads()
                        cut = u32(((turn - 1) >> turns_shift) + 2)
                        if cut >= n_slices:
                            cut = u32(cut - n_slices)
                        start(base, cut, odd, xq, xs, xtotal, i64(count), K, n_blocks, i64(thread))
                    copies_go()
                    odd = u32(odd ^ u32(1))
                # Turns go to two sums by turns, which 16 warps would have one each of.
                for i in range(SUMS):
                    other = shared_f32(kept(part, i))
                    put_f32(kept(part, i), sums[i])
                    sums[i] = other
            if n_slices <= 2:
                odd = u32(0)
            for i in range(SUMS):
                put_f32(kept(part, i), sums[i] + shared_f32(kept(part, i)))
            cuda.syncthreads()
            # A thread for each output of both teams.
            of, output = u32(thread >> OUTPUTS_SHIFT), u32(thread & (OUTPUTS - 1))
            total_at = u32(base + PARTIAL + (of * (TEAM * OUTPUTS) + output) * 4)
            total = f32(0.0)
            for w in range(TEAM):
                total += shared_f32(u32(total_at + w * (OUTPUTS * 4)))
            token = i64(first_token + (output >> 4))
            n = i64(u32(group + of * stride - team * stride)) * ROWS + (output & 15)
            if token < T and n < N:
                store_f32(out + (token * N + n) * 4, total * factor)
            cuda.syncthreads()
            group = u32(group + TEAMS * stride)
        all_have_come()

    matmul_int8.threads = THREADS
    return matmul_int8
