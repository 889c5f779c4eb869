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


def k_scales(block_bytes):
    """d, dmin and the 12 bytes of scales and minima of a block of Q4_K or Q5_K."""

    @device
    def make(weight, row_bytes, row, N, block):
        at = weight + row * row_bytes + block // 8 * block_bytes
        inside = row < N
        return word(at, inside), word(at + 4, inside), word(at + 8, inside), word(at + 12, inside)

    return make


def pairs_tail(pairs):
    """The scales of the blocks of a step, four to 16 bytes."""

    @device
    def make(weight, row_bytes, group, N, block, blocks, place):
        row = group * 16 + place % 8
        first = weight + row * row_bytes
        second = first + 8 * row_bytes
        return pairs(first, second, block + place // 8 * 4, blocks, row < N, row + 8 < N)

    return make


def q4_1_tail(pairs):
    """The scales, then what is added, which lies 2 bytes behind them."""
    tail = pairs_tail(pairs)

    @device
    def make(weight, row_bytes, group, N, block, blocks, place):
        if place < 16:
            return tail(weight, row_bytes, group, N, block, blocks, place)
        return tail(weight + 2, row_bytes, group, N, block, blocks, place - 16)

    return make


q4_k_scales, q5_k_scales = k_scales(144), k_scales(176)


@device
def q4_k_tail(weight, row_bytes, group, N, block, blocks, place):
    return q4_k_scales(weight, row_bytes, group * 16 + place, N, block)


@device
def q5_k_bits(first, second, part, j, inside, below):
    """Fifth bits of blocks j and j + 1 of a lane, as `fragments.quants_q5_k` takes them."""
    found = u32(0)
    for i in range(16):
        column, low = i % 4 + i // 8 * 4 + part * 8, i // 4 % 2 == 0
        at, there = (first, inside) if low else (second, below)
        bits = byte(at + 16 + column, there) >> u32(j)
        place = 8 * (i % 4) + i // 4
        found |= (bits & u32(1)) << u32(place) | ((bits >> u32(1)) & u32(1)) << u32(place + 4)
    return u32(found)


@device
def q5_k_tail(weight, row_bytes, group, N, block, blocks, place):
    if place >= 32:
        return q5_k_scales(weight, row_bytes, group * 16 + place - 32, N, block)
    row = group * 16 + place // 4
    first = weight + row * row_bytes + block // 8 * 176
    second, part = first + 8 * row_bytes, place % 4
    inside, below = row < N, row + 8 < N
    return (
        q5_k_bits(first, second, part, 0, inside, below),
        q5_k_bits(first, second, part, 2, inside, below),
        q5_k_bits(first, second, part, 4, inside, below),
        q5_k_bits(first, second, part, 6, inside, below),
    )


@device
def q6_k_bits(first, second, part, j, inside, below):
    """Upper two bits of block j of a lane, as `fragments.quants_q6_k` takes them, less 2."""
    found = u32(0)
    for i in range(16):
        column, low = i % 4 + i // 8 * 4 + part * 8, i // 4 % 2 == 0
        at, there = (first, inside) if low else (second, below)
        bits = byte(at + 128 + j // 4 * 32 + column, there) >> u32(j % 4 * 2)
        bits = (bits & u32(3)) ^ u32(2)
        found |= bits << u32(8 * (i % 4) + 2 * (i // 4))
    return u32(found)


@device
def two_scales(at, row_bytes, inside, below):
    """The d of a block of Q6_K beside that of the row 8 further."""
    return half_pair(at + 208, at + 208 + 8 * row_bytes, inside, below)


@device
def q6_k_tail(weight, row_bytes, group, N, block, blocks, place):
    start = weight + block // 8 * 210
    if place < 64:
        row = group * 16 + place % 32 // 4
        first = start + row * row_bytes
        second, part, j = first + 8 * row_bytes, place % 4, place // 32 * 4
        inside, below = row < N, row + 8 < N
        return (
            q6_k_bits(first, second, part, j, inside, below),
            q6_k_bits(first, second, part, j + 1, inside, below),
            q6_k_bits(first, second, part, j + 2, inside, below),
            q6_k_bits(first, second, part, j + 3, inside, below),
        )
    if place < 80:
        row = group * 16 + place - 64
        at, inside = start + row * row_bytes + 192, row < N
        return word(at, inside), word(at + 4, inside), word(at + 8, inside), word(at + 12, inside)
    row = group * 16 + (place - 80) * 4
    at = start + row * row_bytes
    return (
        two_scales(at, row_bytes, row < N, row + 8 < N),
        two_scales(at + row_bytes, row_bytes, row + 1 < N, row + 9 < N),
        two_scales(at + 2 * row_bytes, row_bytes, row + 2 < N, row + 10 < N),
        two_scales(at + 3 * row_bytes, row_bytes, row + 3 < N, row + 11 < N),
    )


@device
def iq4_xs_tail(weight, row_bytes, group, N, block, blocks, place):
    row = group * 16 + place
    first = weight + row * row_bytes + block // 8 * 136
    second = first + 8 * row_bytes
    inside, below = row < N, row + 8 < N
    return (
        word(first, inside),
        word(first + 4, inside),
        word(second, below),
        word(second + 4, below),
    )


@device
def q4_1_quants(row_at, block, part, inside):
    if not inside:
        return u32(0)
    at = row_at + block * 20 + 4 + part % 2 * 8
    return nibbles(at, at + 4, u32(part // 2 * 4))


@device
def q5_k_quants(row_at, block, part, inside):
    if not inside:
        return u32(0)
    at = row_at + block // 8 * 176 + 48 + block % 8 // 2 * 32 + part * 8
    return nibbles(at, at + 4, u32(block % 2 * 4))


@device
def q6_k_quants(row_at, block, part, inside):
    if not inside:
        return u32(0)
    j = block % 8
    at = row_at + block // 8 * 210 + j // 4 * 64 + j % 2 * 32 + part * 8
    return nibbles(at, at + 4, u32(j % 4 // 2 * 4))


@device
def four_nibbles(bytes_, shift):
    """A nibble of each byte, side by side."""
    b = (bytes_ >> shift) & u32(0x0F0F0F0F)
    b |= b >> u32(4)
    return u32((b & u32(0xFF)) | ((b >> u32(8)) & u32(0xFF00)))


@device
def iq4_xs_quants(row_at, block, part, inside):
    if not inside:
        return u32(0)
    at = row_at + block // 8 * 136 + 8 + block % 8 * 16 + part % 2 * 8
    shift = u32(part // 2 * 4)
    return u32(
        four_nibbles(word(at, True), shift) | four_nibbles(word(at + 4, True), shift) << u32(16)
    )


# Format -> values and bytes of a block, the function for 16 bytes of quants and how many blocks of
# 32 those are of, the function for 16 bytes of what follows them.
FORMS = {
    "q8_0": (32, 34, int8_piece(q8_0_quants), 1, pairs_tail(halves_of(34))),
    "q4_0": (32, 18, nibble_piece(q4_0_quants), 2, pairs_tail(halves_of(18))),
    "q4_1": (32, 20, nibble_piece(q4_1_quants), 2, q4_1_tail(halves_of(20))),
    "q4_k": (256, 144, nibble_piece(q4_k_quants), 2, q4_k_tail),
    "q5_k": (256, 176, nibble_piece(q5_k_quants), 2, q5_k_tail),
    "q6_k": (256, 210, nibble_piece(q6_k_quants), 2, q6_k_tail),
    "iq4_xs": (256, 136, nibble_piece(iq4_xs_quants), 2, iq4_xs_tail),
}


def make_fragments(name, step):
    """The kernel for a quantised format."""
    step_blocks, step_bytes, quant_bytes = step.blocks, step.total_bytes, step.quant_bytes
    block_size, block_bytes, quants, piece_blocks, tail = FORMS[name]
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
            row = group * 16 + lane // 4
            first = weight + row * row_bytes
            second = first + 8 * row_bytes
            block += inner // 512 * piece_blocks
            r = quants(first, second, block, blocks, lane % 4, row < N, row + 8 < N)
        else:
            place = (inner - quant_bytes) // 16
            r = tail(weight, row_bytes, group, N, block, blocks, place)
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
