"""matmul_halves: products with many tokens on sm_90; see `wide`.

The weight is read as it is packed, made halves in registers, and multiplied by halves of
activations with float32 sums.
"""

from numba import cuda
from numba.cuda import types

from kernels_cuda.fragments import FRAGMENTS
from kernels_cuda.layouts import STEPS, TILE_BYTES
from kernels_cuda.memory import dynamic_shared
from kernels_cuda.ptx import (
    add_halves,
    arrive,
    await_phase,
    barrier_init,
    barriers_visible,
    bytes_of,
    copy_bulk,
    expect,
    fma_halves,
    grid_go,
    grid_wait,
    mul_halves,
    shared_16,
    two_halves,
)
from kernels_cuda.rings import fetch, open_ring
from kernels_cuda.wgmma import keep, multiply, store, with_kept, zeros
from kernels_cuda.wide import BARRIERS, TILES, pieces_of

f32, i64, u32 = types.float32, types.int64, types.uint32
device = cuda.jit(device=True)
SIGNS = u32(0x80808080)
MAGIC = u32(0x64646464)  # upper bytes of 1024 in f16
MINUS_1152 = u32(0xE480E480)


@device
def halves_of(word):
    """Four int8 as two registers of f16."""
    shifted = u32(word ^ SIGNS)
    low = bytes_of(shifted, MAGIC, u32(0x4140))
    high = bytes_of(shifted, MAGIC, u32(0x4342))
    return add_halves(low, MINUS_1152), add_halves(high, MINUS_1152)


def block_halves(form, j):
    """The function from a piece's registers to block j as halves: operand a of two products."""
    quants = form.quants(j)
    steps = form.own(j) if form.in_halves else form.scales(j)
    has_minima = form.minima is not None
    minima = form.minima(j) if has_minima else steps

    @device
    def make(r):
        a = quants(r)
        low, high = steps(r)
        low, high = two_halves(low, low), two_halves(high, high)
        p, q = halves_of(a[0]), halves_of(a[2])  # of the first row
        s, t = halves_of(a[1]), halves_of(a[3])  # of the other
        if has_minima:
            m, n = minima(r)
            m, n = two_halves(-m, -m), two_halves(-n, -n)
            return (
                fma_halves(p[0], low, m),
                fma_halves(s[0], high, n),
                fma_halves(p[1], low, m),
                fma_halves(s[1], high, n),
                fma_halves(q[0], low, m),
                fma_halves(t[0], high, n),
                fma_halves(q[1], low, m),
                fma_halves(t[1], high, n),
            )
        return (
            mul_halves(p[0], low),
            mul_halves(s[0], high),
            mul_halves(p[1], low),
            mul_halves(s[1], high),
            mul_halves(q[0], low),
            mul_halves(t[0], high),
            mul_halves(q[1], low),
            mul_halves(t[1], high),
        )

    return make


def pair_of(first, second):
    @device
    def make(r):
        return first(r) + second(r)

    return make


@device
def tile_piece(place, lane):
    """A lane's halves of 16 rows by 64 columns, in the order of operands."""
    row = lane >> 2
    near = u32(place + row * 128 + ((lane & 3) ^ row) * 16)
    far = u32(place + row * 128 + (((lane & 3) + 4) ^ row) * 16)
    v, w = shared_16(near), shared_16(u32(near + 1024))
    y, z = shared_16(far), shared_16(u32(far + 1024))
    return (
        v[0], w[0], v[1], w[1], v[2], w[2], v[3], w[3],
        y[0], z[0], y[1], z[1], y[2], z[2], y[3], z[3],
    )  # fmt: skip


@device
def as_it_is(r):
    return r


def parts_of(name):
    """Bytes of a piece, what loads it, and the function for each 64 columns of it."""
    if name not in FRAGMENTS:
        return 2048, tile_piece, [as_it_is], 1.0
    form, step = FRAGMENTS[name], STEPS[name]
    blocks = [block_halves(form, j) for j in range(step.blocks)]
    pairs = [pair_of(*blocks[j : j + 2]) for j in range(0, step.blocks, 2)]
    return step.total_bytes, form.load(shared_16), pairs, form.factor


def make(name, tokens):
    """The kernel for a format and tiles of so many tokens."""
    piece, load, parts, factor = parts_of(name)
    factor = f32(factor)
    per_piece = len(parts)
    per_shift = per_piece.bit_length() - 1
    in_tiles = name not in FRAGMENTS
    halves = "bf16" if name == "bf16" else "f16"
    stages, _, groups, shares = TILES[tokens]
    pieces = pieces_of(tokens, piece)
    stage_mask, stage_shift = stages - 1, stages.bit_length() - 1
    stage_bytes = tokens * 128
    copies = max(1, tokens // 128)
    copy_bytes = stage_bytes // copies
    zero, times, put = zeros(tokens), multiply(tokens, halves), store(tokens)
    write, add_kept = keep(tokens), with_kept(tokens)
    n_warps = 4 * groups
    rows_tile = 64 if shares else 64 * groups
    readers = 4 if shares else n_warps
    # From the first 64 columns of a piece to the ones before them of the same warp.
    back = 1 + (groups - 1) * per_piece if shares else 1
    first, second, third, fourth = (parts[min(h, per_piece - 1)] for h in range(4))
    rings_at = BARRIERS + stages * stage_bytes

    @device
    def fill(activations, barriers, at, tile, x_columns):
        """Start the copies of the activations' 64 columns `at`."""
        stage = at & stage_mask
        full = u32(barriers + stage * 16)
        place = u32(activations + stage * stage_bytes)
        expect(full, u32(stage_bytes))
        for i in range(copies):
            source = tile + (at + i * x_columns) * TILE_BYTES
            copy_bulk(u32(place + i * copy_bytes), source, u32(copy_bytes), full)

    @device
    def begin(activations, barriers, at):
        """Wait for the activations' 64 columns `at`; where they are."""
        stage = at & stage_mask
        await_phase(u32(barriers + stage * 16), u32((at >> stage_shift) & 1))
        return u32(activations + stage * stage_bytes)

    @device
    def end(activations, barriers, at, before, tile, columns, x_columns, leads, lane):
        """Give up columns `at`, and let others take the place of the columns `before`."""
        if lane == 0:
            arrive(u32(barriers + (at & stage_mask) * 16 + 8))
        if leads and before >= 0 and before + stages < columns:
            await_phase(
                u32(barriers + (before & stage_mask) * 16 + 8), u32((before >> stage_shift) & 1)
            )
            fill(activations, barriers, before + stages, tile, x_columns)

    def matmul_halves(out, weight, xh, K, T, N, rows, row_bytes, size):
        grid_go()
        thread = i64(cuda.threadIdx.x)
        lane, warp = thread & 31, thread >> 5
        base = i64(dynamic_shared())
        barriers = u32(base)
        activations = u32(base + BARRIERS)
        x_columns = ((K + 255) >> 8) << 2
        steps = (((K + 63) >> 6) + (per_piece - 1)) >> per_shift
        columns = steps << per_shift
        four, quarter = warp >> 2, warp & 3
        # The group of 16 rows of the warp, and the pieces of it that are its.
        first_row = i64(cuda.blockIdx.y) * rows_tile + quarter * 16
        start, stride = i64(0), i64(1)
        if shares:
            start, stride = four, i64(groups)
        else:
            first_row += four * 64
        group = first_row >> 4
        if first_row >= N:
            # Rows that are not there: those of the first group, not stored.
            group = i64(0)
        ring = u32(base + rings_at + warp * (pieces * piece))
        mine = u32(barriers + stages * 16 + warp * (pieces * 8))
        past = u32(mine + pieces * 8)
        open_ring(mine, pieces, lane)
        if thread == 0:
            for stage in range(stages):
                barrier_init(u32(barriers + stage * 16), u32(1))
                barrier_init(u32(barriers + stage * 16 + 8), u32(readers))
            barriers_visible()
        if in_tiles:
            source = weight + ((group >> 3) * columns + start) * TILE_BYTES + (group & 7) * 2048
            jump = stride * TILE_BYTES
        else:
            source = weight + (group * steps + start) * piece
            jump = stride * piece
        coming = start
        place, barrier, parity = ring, mine, u32(0)
        if lane == 0:
            while barrier != past and coming < steps:
                fetch(place, barrier, source, piece)
                place, barrier = u32(place + piece), u32(barrier + 8)
                coming += stride
                source += jump
            place, barrier = ring, mine
        first_token = i64(cuda.blockIdx.x) * tokens
        tile = xh + (first_token >> 7) * x_columns * TILE_BYTES + (first_token & 127) * 128
        grid_wait()
        if thread == 0:
            for at in range(min(i64(stages), columns)):
                fill(activations, barriers, at, tile, x_columns)
        cuda.syncthreads()
        leads = lane == 0 and quarter == 0 and (shares or four == 0)
        sums = zero()
        for step in range(start, steps, stride):
            await_phase(barrier, parity)
            r = load(place, lane)
            cuda.syncwarp()
            if lane == 0 and coming < steps:
                fetch(place, barrier, source, piece)
                coming += stride
                source += jump
            place, barrier = u32(place + piece), u32(barrier + 8)
            if barrier == past:
                place, barrier, parity = ring, mine, u32(parity ^ u32(1))
            at = step << per_shift
            x = begin(activations, barriers, at)
            sums = times(sums, first(r), x)
            end(activations, barriers, at, at - back, tile, columns, x_columns, leads, lane)
            if per_piece > 1:
                x = begin(activations, barriers, at + 1)
                sums = times(sums, second(r), x)
                end(activations, barriers, at + 1, at, tile, columns, x_columns, leads, lane)
            if per_piece > 2:
                x = begin(activations, barriers, at + 2)
                sums = times(sums, third(r), x)
                end(activations, barriers, at + 2, at + 1, tile, columns, x_columns, leads, lane)
                x = begin(activations, barriers, at + 3)
                sums = times(sums, fourth(r), x)
                end(activations, barriers, at + 3, at + 2, tile, columns, x_columns, leads, lane)
            cuda.syncwarp()
        if shares:
            # Those of the other groups, over the activations.
            kept = u32(activations + (thread & 127) * 4)
            cuda.syncthreads()
            if four > 0:
                sums = write(sums, u32(kept + (four - 1) * (256 * tokens)))
            cuda.syncthreads()
            if four > 0:
                return
            for other in range(groups - 1):
                sums = add_kept(sums, u32(kept + other * (256 * tokens)))
        row = first_row + (lane >> 2)
        low, high = u32(row < N), u32(row + 8 < N)
        token = first_token + (lane & 3) * 2
        put(sums, out + (token * N + row) * 4, N * 4, T - token, factor, low, high)

    matmul_halves.threads = 32 * n_warps
    return matmul_halves
