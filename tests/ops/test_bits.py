"""Halves, floats and their bits: every half there is."""

import struct

import numpy as np
import pytest
from op_faces import run

from llama3jit.ops.bits import bits_to_float, float_to_half, half_to_float

HALVES = np.arange(65536, dtype=np.uint16)
# Every half as a float: sign, exponent and fraction put together by hand.
SIGN, EXPONENT, FRACTION = HALVES >> 15, HALVES >> 10 & 31, HALVES & 1023
FLOATS = np.where(
    EXPONENT == 0,
    FRACTION * 2.0**-24,
    (1 + FRACTION / 1024) * 2.0 ** (EXPONENT.astype(np.float64) - 15),
)
FLOATS = np.where(EXPONENT == 31, np.where(FRACTION == 0, np.inf, np.nan), FLOATS)
FLOATS = (FLOATS * np.where(SIGN == 1, -1.0, 1.0)).astype(np.float32)


def same(found, expected):
    return np.array_equal(found, expected, equal_nan=True) and np.array_equal(
        np.signbit(found[~np.isnan(found)]), np.signbit(expected[~np.isnan(expected)])
    )


def compiled(faced):
    """The compiled CPU form, over an array."""
    numba = pytest.importorskip("numba")
    form = faced.form("cpu")
    return numba.njit(lambda values: [form(value) for value in values])


def hard_floats():
    """Floats between halves: every middle, and its neighbours on both sides."""
    finite = np.sort(FLOATS[np.isfinite(FLOATS)].astype(np.float64))
    middles = ((finite[1:] + finite[:-1]) / 2).astype(np.float32)
    ends = np.array([65519.996, 65520, 65536, 1e30, np.inf, -np.inf, np.nan, 1e-30, -1e-30, 0.0])
    above, below = np.nextafter(middles, np.inf), np.nextafter(middles, -np.inf)
    return np.concatenate([middles, above, below, ends.astype(np.float32)]).astype(np.float32)


def nearest_half(x):
    """Bits of the half nearest to x, by struct, which knows ties to even but no overflow."""
    if abs(x) >= 65520:
        return 0x7C00 | (0x8000 if x < 0 else 0)
    return struct.unpack("<H", struct.pack("<e", x))[0]


def test_every_half_to_float():
    assert same(np.array([half_to_float(bits) for bits in HALVES]), FLOATS)


def test_every_half_to_float_compiled():
    assert same(np.array(compiled(half_to_float)(HALVES), np.float32), FLOATS)


def test_every_half_to_float_in_vectors():
    """The reading of an f16 weight in the tuned kernels, 16 at a time."""
    out = np.zeros((1, 65536 // 32 * 32), np.float32)
    x = np.ones((1, 1), np.float32)
    run("matmul", "f16", "tuned", out=out, weight=HALVES.view(np.uint8).reshape(-1, 2), x=x)
    assert same(out[0] + np.float32(0), FLOATS + np.float32(0))


@pytest.mark.parametrize("form", ["python", "compiled"])
def test_float_to_half_rounds_to_nearest_even(form):
    numbers = hard_floats()
    function = compiled(float_to_half) if form == "compiled" else lambda v: map(float_to_half, v)
    halves = np.array(list(function(numbers)), np.uint16)
    nan = np.isnan(numbers)
    expected = [nearest_half(float(x)) for x in numbers[~nan]]
    assert halves[~nan].tolist() == expected
    assert np.isnan(halves[nan].view(np.float16)).all()


@pytest.mark.parametrize("form", ["python", "compiled"])
def test_bits_to_float(form):
    bits = np.array([0, 1, 0x3F800000, 0x7F800000, -1, -(2**31), 0x00800000, 0x7F7FFFFF], np.int32)
    function = compiled(bits_to_float) if form == "compiled" else lambda v: map(bits_to_float, v)
    assert same(np.array(list(function(bits)), np.float32), bits.view(np.float32))
