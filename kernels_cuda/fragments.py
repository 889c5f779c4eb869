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

from kernels_cuda.ptx import byte_to_f32, high_half, low_half

u32 = types.uint32
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
        return (
            read(q)
            + read(q + 512)
            + read(q + 1024)
            + read(q + 1536)
            + read(s)
            + read(s + 128)
        )

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


FRAGMENTS = {
    "q8_0": Fragments(load_q8_0, quants_q8_0, half_scales(16)),
    "q4_0": Fragments(load_q4_0, quants_q4_0, half_scales(16), factor=1 / 16),
    "q4_k": Fragments(load_q4_k, quants_nibbles, *k_scales(16)),
}
