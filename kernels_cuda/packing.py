"""The kernels of `pack`."""

from numba import cuda
from numba.cuda import types

from kernels_cuda.pack import THREADS
from kernels_cuda.ptx import grid_go, grid_wait, load_1, store_16

u32, i64 = types.uint32, types.int64
device = cuda.jit(device=True)


@device
def byte(address, inside):
    return load_1(address) if inside else u32(0)


@device
def word(address, inside):
    """Four bytes that need not be aligned."""
    if not inside:
        return u32(0)
    low = load_1(address) | load_1(address + 1) << u32(8)
    return u32(low | load_1(address + 2) << u32(16) | load_1(address + 3) << u32(24))


@device
def half_pair(first, second, inside, below):
    """The halves at two addresses, of which the second's row may lie below the last one."""
    low = byte(first, inside) | byte(first + 1, inside) << u32(8)
    high = byte(second, below) | byte(second + 1, below) << u32(8)
    return u32(low | high << u32(16))


@device
def nibbles(first, second, shift):
    """Four nibbles of bytes from address `first` on, low, and four from `second` on, high."""
    low, high = word(first, True), word(second, True)
    low = (low >> shift) & u32(0x0F0F0F0F)
    high = (high >> shift) & u32(0x0F0F0F0F)
    return u32(low | high << u32(4))


@device
def q8_0_quants(row_at, block, part, inside):
    """Columns 8 * part to 8 * part + 7 of a block, two registers."""
    at = row_at + block * 34 + 2 + part * 8
    return word(at, inside), word(at + 4, inside)


@device
def q4_0_quants(row_at, block, part, inside):
    """The same as nibbles in one register, each less 8: the first four columns low."""
    if not inside:
        return u32(0)
    at = row_at + block * 18 + 2 + part % 2 * 8
    return u32(nibbles(at, at + 4, u32(part // 2 * 4)) ^ u32(0x88888888))


@device
def q4_k_quants(row_at, block, part, inside):
    if not inside:
        return u32(0)
    at = row_at + block // 8 * 144 + 16 + block % 8 // 2 * 32 + part * 8
    return nibbles(at, at + 4, u32(block % 2 * 4))


def int8_piece(quants):
    """16 bytes of the quants of a step: one block, of both rows of a lane."""

    @device
    def make(first, second, block, blocks, part, inside, below):
        a = quants(first, block, part, inside and block < blocks)
        b = quants(second, block, part, below and block < blocks)
        return a[0], b[0], a[1], b[1]

    return make


def nibble_piece(quants):
    """16 bytes of the quants of a step: two blocks, of both rows of a lane."""

    @device
    def make(first, second, block, blocks, part, inside, below):
        one, two = block < blocks, block + 1 < blocks
        return (
            quants(first, block, part, inside and one),
            quants(second, block, part, below and one),
            quants(first, block + 1, part, inside and two),
            quants(second, block + 1, part, below and two),
        )

    return make


def halves_of(block_bytes):
    """16 bytes of the scales of a step: of four blocks, each row's beside that of the row below."""

    @device
    def make(first, second, block, blocks, inside, below):
        one, other = first + block * block_bytes, second + block * block_bytes
        n = blocks - block
        return (
            half_pair(one, other, inside and n > 0, below and n > 0),
            half_pair(one + block_bytes, other + block_bytes, inside and n > 1, below and n > 1),
            half_pair(
                one + 2 * block_bytes, other + 2 * block_bytes, inside and n > 2, below and n > 2
            ),
            half_pair(
                one + 3 * block_bytes, other + 3 * block_bytes, inside and n > 3, below and n > 3
            ),
        )

    return make


@device
def k_scales(first, block, inside):
    """d, dmin and the 12 bytes of scales and minima of a block of Q4_K."""
    at = first + block // 8 * 144
    return word(at, inside), word(at + 4, inside), word(at + 8, inside), word(at + 12, inside)


# Format -> block size, piece of quants, blocks of a piece.
QUANTS = {
    "q8_0": (32, int8_piece(q8_0_quants), 1),
    "q4_0": (32, nibble_piece(q4_0_quants), 2),
    "q4_k": (256, nibble_piece(q4_k_quants), 2),
}
PAIRS = {"q8_0": halves_of(34), "q4_0": halves_of(18)}
BYTES = {"q8_0": 34, "q4_0": 18, "q4_k": 144}


def make_fragments(name, step):
    """The kernel for a quantised format."""
    step_blocks, step_bytes, quant_bytes = step.blocks, step.total_bytes, step.quant_bytes
    block_size, quants, piece_blocks = QUANTS[name]
    in_pairs = name in PAIRS
    pairs = PAIRS.get(name, halves_of(34))
    block_bytes = BYTES[name]
    parts = block_size // 32

    def pack(packed, weight, size, N, row_bytes):
        grid_go()
        grid_wait()
        at = (i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x) * 16
        if at >= size:
            return
        blocks = row_bytes // block_bytes * parts
        steps = (blocks + step_blocks - 1) // step_blocks
        step = at // step_bytes
        inner = at % step_bytes
        group = step // steps
        block = step % steps * step_blocks
        if inner < quant_bytes:
            lane = inner % 512 // 16
            piece = inner // 512
            row = group * 16 + lane // 4
            first = weight + row * row_bytes
            second = first + 8 * row_bytes
            block += piece * piece_blocks
            r = quants(first, second, block, blocks, lane % 4, row < N, row + 8 < N)
            store_16(packed + at, r[0], r[1], r[2], r[3])
        elif in_pairs:
            place = (inner - quant_bytes) // 16
            row = group * 16 + place % 8
            block += place // 8 * 4
            first = weight + row * row_bytes
            second = first + 8 * row_bytes
            r = pairs(first, second, block, blocks, row < N, row + 8 < N)
            store_16(packed + at, r[0], r[1], r[2], r[3])
        else:
            row = group * 16 + (inner - quant_bytes) // 16
            r = k_scales(weight + row * row_bytes, block, row < N)
            store_16(packed + at, r[0], r[1], r[2], r[3])

    return pack


def make_tiles():
    """The kernel for halves."""

    def pack(packed, weight, size, N, row_bytes):
        grid_go()
        grid_wait()
        at = (i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x) * 16
        if at >= size:
            return
        columns = (row_bytes + 127) // 128
        tile = at // 16384
        row = tile // columns * 128 + at % 16384 // 128
        piece = ((at // 16) ^ row) & 7
        start = tile % columns * 128 + piece * 16
        first = weight + row * row_bytes + start
        inside = row < N
        store_16(
            packed + at,
            word(first, inside and start < row_bytes),
            word(first + 4, inside and start + 4 < row_bytes),
            word(first + 8, inside and start + 8 < row_bytes),
            word(first + 12, inside and start + 12 < row_bytes),
        )

    return pack
