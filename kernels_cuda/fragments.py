"""How quantised weights lie on a GPU: in the order in which a warp's lanes take them for products
of int8 matrices, 16 rows at a time.

A step is some blocks of 32 columns of 16 rows; steps follow one another along the columns, then
come the next 16 rows. In it lie first the quants: what lane l holds of row l / 4 and of the row 8
further, columns 8 (l % 4) and the 7 after it of each block, 16 bytes at a time; then the scales of
the rows. Rows are padded to 16, columns to a whole step, by zeros.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numba import cuda
from numba.cuda import types

from kernels_cuda.ptx import (
    byte_to_f32,
    bytes_of,
    high_half,
    i32_to_f32,
    lane_id,
    low_half,
    signed_byte_to_f32,
)

f32, u32 = types.float32, types.uint32
HIGH = u32(0xF0F0F0F0)
LOW = u32(0x0F0F0F0F)
device = cuda.jit(device=True)


@dataclass(frozen=True, slots=True)
class Fragments:
    """`load(read)` makes the function that gives a lane's registers of the step at an address, by a
    `read` of 16 bytes. `quants(j)` makes the
    function from these to the operand a of block j, `scales(j)` that to the steps of both rows,
    `minima(j)` that to what is taken off in them. `factor` is what the products lack."""

    load: Callable[..., Any]
    quants: Callable[..., Any]
    scales: Callable[..., Any]
    minima: Callable[..., Any] | None = None
    factor: float = 1.0
    # `scales(j, h)` are those of half h of block j, 16 columns, and `own(j)` those of the half that
    # a lane's columns lie in.
    in_halves: bool = False
    own: Callable[..., Any] | None = None


def half_scales(first):
    """Register `first` + j holds the f16 scale of row l / 4 and that of the row 8 further."""

    def scales(j):
        at = first + j

        @device
        def of_block(r):
            return low_half(r[at]), high_half(r[at])

        return of_block

    return scales


def load_q8_0(read):
    @device
    def load(p, lane):
        q = p + lane * 16
        return (
            read(q)
            + read(q + 512)
            + read(q + 1024)
            + read(q + 1536)
            + read(p + 2048 + (lane >> 2) * 16)
        )

    return load


def quants_q8_0(j):
    first, second, third, fourth = range(4 * j, 4 * j + 4)

    @device
    def of_block(r):
        return r[first], r[second], r[third], r[fourth]

    return of_block


def load_q4_0(read):
    @device
    def load(p, lane):
        q = p + lane * 16
        s = p + 2048 + (lane >> 2) * 16
        return read(q) + read(q + 512) + read(q + 1024) + read(q + 1536) + read(s) + read(s + 128)

    return load


def quants_q4_0(j):
    """Nibbles as they are stored, less 8, times 16: in the upper half of a byte."""
    first, second = 2 * j, 2 * j + 1

    @device
    def of_block(r):
        x, y = r[first], r[second]
        return (x << u32(4)) & HIGH, (y << u32(4)) & HIGH, x & HIGH, y & HIGH

    return of_block


def load_q4_k(read):
    @device
    def load(p, lane):
        q = p + lane * 16
        s = p + 2048 + (lane >> 2) * 16
        return (
            read(q)
            + read(q + 512)
            + read(q + 1024)
            + read(q + 1536)
            + six_bits(read(s))
            + six_bits(read(s + 128))
        )

    return load


@device
def six_bits(r):
    """d and dmin, four scales, four more, four minima, four more: from d, dmin and the 12 bytes of
    scales and minima (llama3jit.ops.k_quants.six_bit_scale)."""
    low, middle, top = r[1], r[2], r[3]
    six, four = u32(0x3F3F3F3F), u32(0x30303030)
    return (
        r[0],
        u32(low & six),
        u32((top & LOW) | ((low >> u32(2)) & four)),
        u32(middle & six),
        u32(((top >> u32(4)) & LOW) | ((middle >> u32(2)) & four)),
    )


def quants_nibbles(j):
    first, second = 2 * j, 2 * j + 1

    @device
    def of_block(r):
        x, y = r[first], r[second]
        return x & LOW, y & LOW, (x >> u32(4)) & LOW, (y >> u32(4)) & LOW

    return of_block


def k_scales(first):
    """The scales of a step of Q4_K or Q5_K whose registers of `six_bits` begin at `first`."""

    def scales(j):
        low, high = first + 1 + j // 4, first + 6 + j // 4
        other = first + 5
        byte = byte_to_f32[j % 4]

        @device
        def of_block(r):
            return low_half(r[first]) * byte(r[low]), low_half(r[other]) * byte(r[high])

        return of_block

    def minima(j):
        low, high = first + 3 + j // 4, first + 8 + j // 4
        other = first + 5
        byte = byte_to_f32[j % 4]

        @device
        def of_block(r):
            return high_half(r[first]) * byte(r[low]), high_half(r[other]) * byte(r[high])

        return of_block

    return scales, minima


def load_nibbles(tail):
    """The function that loads 4 registers of quants for each two blocks, then `tail(read, s, lane)`
    from what follows them at s."""

    def load_by(read):
        rest = tail(read)

        @device
        def load(p, lane):
            q = p + lane * 16
            quants = read(q) + read(q + 512) + read(q + 1024) + read(q + 1536)
            return quants + rest(p + 2048, lane)

        return load

    return load_by


def q4_1_tail(read):
    @device
    def rest(s, lane):
        s += (lane >> 2) * 16
        return read(s) + read(s + 128) + read(s + 256) + read(s + 384)

    return rest


def half_minima(first):
    """Like `half_scales`, of what is added."""

    def minima(j):
        at = first + j

        @device
        def of_block(r):
            return -low_half(r[at]), -high_half(r[at])

        return of_block

    return minima


def q5_k_tail(read):
    @device
    def rest(s, lane):
        scales = s + 512 + (lane >> 2) * 16
        return read(s + lane * 16) + six_bits(read(scales)) + six_bits(read(scales + 128))

    return rest


def quants_q5_k(j):
    """Nibbles and, from registers 16 on, fifth bits: of operand i of block j bits 4 (j % 2) + i of
    the bytes of register j / 2."""
    first, second, bits = 2 * j, 2 * j + 1, 16 + j // 2
    low, fifth = j % 2 == 0, u32(0x10101010)

    @device
    def of_block(r):
        x, y, z = r[first], r[second], r[bits]
        z = u32(z << u32(4)) if low else z
        a, b = x & LOW, y & LOW
        c, d = (x >> u32(4)) & LOW, (y >> u32(4)) & LOW
        return (
            u32(a | (z & fifth)),
            u32(b | ((z >> u32(1)) & fifth)),
            u32(c | ((z >> u32(2)) & fifth)),
            u32(d | ((z >> u32(3)) & fifth)),
        )

    return of_block


def q6_k_tail(read):
    @device
    def rest(s, lane):
        row = lane >> 2
        bits = read(s + lane * 16) + read(s + 512 + lane * 16)
        scales = read(s + 1024 + row * 16) + read(s + 1152 + row * 16)
        d = read(s + 1280 + (row >> 2) * 16)
        pair = d[0]
        if row & 3 == 1:
            pair = d[1]
        if row & 3 == 2:
            pair = d[2]
        if row & 3 == 3:
            pair = d[3]
        return bits + scales + (pair,)

    return rest


def quants_q6_k(j):
    """Nibbles and, from registers 16 on, upper two bits, those of operand i of block j in bits 2 i
    of the bytes of register j: less 32, times 4."""
    first, second, bits = 2 * j, 2 * j + 1, 16 + j
    middle, top = u32(0x3C3C3C3C), u32(0xC0C0C0C0)

    @device
    def of_block(r):
        x, y, z = r[first], r[second], r[bits]
        return (
            u32(((x << u32(2)) & middle) | ((z << u32(6)) & top)),
            u32(((y << u32(2)) & middle) | ((z << u32(4)) & top)),
            u32(((x >> u32(2)) & middle) | ((z << u32(2)) & top)),
            u32(((y >> u32(2)) & middle) | (z & top)),
        )

    return of_block


def scales_q6_k(j, half):
    part = 2 * j + half
    low, high = 24 + part // 4, 28 + part // 4
    byte = signed_byte_to_f32[part % 4]

    @device
    def of_half(r):
        return low_half(r[32]) * byte(r[low]), high_half(r[32]) * byte(r[high])

    return of_half


def own_scales_q6_k(j):
    first, second = scales_q6_k(j, 0), scales_q6_k(j, 1)

    @device
    def of_lane(r):
        a, b = first(r), second(r)
        if lane_id() & u32(2):
            return b
        return a

    return of_lane


def iq4_xs_tail(read):
    @device
    def rest(s, lane):
        return read(s + (lane >> 2) * 16)

    return rest


# The table of IQ4_NL (llama3jit.ops.codebooks), four int8 to a register.
TABLE = tuple(
    u32(sum((value & 255) << 8 * i for i, value in enumerate(values)))
    for values in (
        (-127, -104, -83, -65),
        (-49, -35, -22, -10),
        (1, 13, 25, 38),
        (53, 69, 89, 113),
    )
)
T0, T1, T2, T3 = TABLE


@device
def from_table(word):
    """The table's values at the lower four nibbles."""
    index = u32(word & u32(0x7777))
    upper = u32(((word >> u32(1)) & u32(0x4444)) | u32(0x3210))
    return bytes_of(bytes_of(T0, T1, index), bytes_of(T2, T3, index), upper)


def quants_table(j):
    """Of each register the lower nibbles are the first operand's, the upper ones the second's."""
    first, second = 2 * j, 2 * j + 1

    @device
    def of_block(r):
        x, y = r[first], r[second]
        return (
            from_table(x),
            from_table(y),
            from_table(u32(x >> u32(16))),
            from_table(u32(y >> u32(16))),
        )

    return of_block


def scales_iq4_xs(j):
    """Registers 16 and 17: d, upper two bits, lower four bits of a row's scales; 18 and 19 of the
    row 8 further."""
    above, below = u32(16 + 2 * j), u32(4 * j)

    @device
    def scale(first, second):
        s = ((second >> below) & u32(15)) | (((first >> above) & u32(3)) << u32(4))
        return low_half(first) * (i32_to_f32(u32(s)) - f32(32.0))

    @device
    def of_block(r):
        return scale(r[16], r[17]), scale(r[18], r[19])

    return of_block


FRAGMENTS = {
    "q8_0": Fragments(load_q8_0, quants_q8_0, half_scales(16)),
    "q4_0": Fragments(load_q4_0, quants_q4_0, half_scales(16), factor=1 / 16),
    "q4_1": Fragments(load_nibbles(q4_1_tail), quants_nibbles, half_scales(16), half_minima(24)),
    "q4_k": Fragments(load_q4_k, quants_nibbles, *k_scales(16)),
    "q5_k": Fragments(load_nibbles(q5_k_tail), quants_q5_k, *k_scales(20)),
    "q6_k": Fragments(
        load_nibbles(q6_k_tail),
        quants_q6_k,
        scales_q6_k,
        factor=1 / 4,
        in_halves=True,
        own=own_scales_q6_k,
    ),
    "iq4_xs": Fragments(load_nibbles(iq4_xs_tail), quants_table, scales_iq4_xs),
}
