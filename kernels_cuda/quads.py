"""Scales of blocks as the four lanes of a row share them: of four blocks a lane takes one, the
block of its number, so that each scale is worked out once. For products with one token; see
`few_int8_steps`.

A form is made from a number g, that of the four blocks in a step, and is a function from a lane's
registers (`fragments`) and its number in the row, 0 to 3, to the numbers of its two rows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numba import cuda
from numba.cuda import types

from kernels_cuda.ptx import (
    any_byte_to_f32,
    any_signed_byte_to_f32,
    high_half,
    i32_to_f32,
    low_half,
)

f32, u32 = types.float32, types.uint32
device = cuda.jit(device=True)


@dataclass(frozen=True, slots=True)
class Quad:
    """`scales(g)` and `minima(g)` of a lane's block; with `in_halves` its `scales(g, h)` are those
    of 16 columns."""

    scales: Callable[..., Any]
    minima: Callable[..., Any] | None = None


@device
def picked(lane, a, b, c, d):
    """The value of a lane's number."""
    even = c if lane & u32(2) else a
    odd = d if lane & u32(2) else b
    return odd if lane & u32(1) else even


def half_scales(first):
    """Of fragments.half_scales."""

    def scales(g):
        a, b, c, d = range(first + 4 * g, first + 4 * g + 4)

        @device
        def of_lane(r, lane):
            pair = picked(lane, r[a], r[b], r[c], r[d])
            return low_half(pair), high_half(pair)

        return of_lane

    return scales


def half_minima(first):
    """Of fragments.half_minima."""
    added = half_scales(first)

    def minima(g):
        of_four = added(g)

        @device
        def of_lane(r, lane):
            low, high = of_four(r, lane)
            return -low, -high

        return of_lane

    return minima


def k_scales(first):
    """Of fragments.k_scales."""
    other = first + 5

    def scales(g):
        low, high = first + 1 + g, other + 1 + g

        @device
        def of_lane(r, lane):
            return (
                low_half(r[first]) * any_byte_to_f32(r[low], lane),
                low_half(r[other]) * any_byte_to_f32(r[high], lane),
            )

        return of_lane

    def minima(g):
        low, high = first + 3 + g, other + 3 + g

        @device
        def of_lane(r, lane):
            return (
                high_half(r[first]) * any_byte_to_f32(r[low], lane),
                high_half(r[other]) * any_byte_to_f32(r[high], lane),
            )

        return of_lane

    return Quad(scales, minima)


def scales_q6_k(g, half):
    """Of fragments.scales_q6_k."""
    low, high, byte = 24 + 2 * g, 28 + 2 * g, u32(8 * half)

    @device
    def of_lane(r, lane):
        upper, at = lane & u32(2), u32(((lane & u32(1)) << u32(4)) + byte)
        a = r[low + 1] if upper else r[low]
        b = r[high + 1] if upper else r[high]
        return (
            low_half(r[32]) * any_signed_byte_to_f32(a, at),
            high_half(r[32]) * any_signed_byte_to_f32(b, at),
        )

    return of_lane


def scales_iq4_xs(g):
    """Of fragments.scales_iq4_xs."""
    block = u32(4 * g)

    @device
    def scale(first, second, j):
        s = ((second >> u32(4 * j)) & u32(15)) | (((first >> u32(16 + 2 * j)) & u32(3)) << u32(4))
        return low_half(first) * (i32_to_f32(u32(s)) - f32(32.0))

    @device
    def of_lane(r, lane):
        j = u32(block + lane)
        return scale(r[16], r[17], j), scale(r[18], r[19], j)

    return of_lane


QUADS = {
    "q8_0": Quad(half_scales(16)),
    "q4_0": Quad(half_scales(16)),
    "q4_1": Quad(half_scales(16), half_minima(24)),
    "q4_k": k_scales(16),
    "q5_k": k_scales(20),
    "q6_k": Quad(scales_q6_k),
    "iq4_xs": Quad(scales_iq4_xs),
}
