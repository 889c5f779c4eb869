"""exp in float32, from operations that every device has in vector form."""

from __future__ import annotations

import numpy as np

from llama3jit.ops.bits import bits_to_float, rint

LOG2_E = np.float32(1.4426950408889634)
# ln 2 in two parts; the first has so few bits that its product with any exponent is exact.
LN_2_HIGH = np.float32(0.693359375)
LN_2_LOW = np.float32(-2.12194440054690583e-4)
LOWEST = np.float32(-87.0)
HIGHEST = np.float32(88.0)


def exp(x):
    """exp(x) within 2 units in the last place for -87 <= x <= 88; outside, that of the nearer end.

    x = n ln 2 + r with |r| <= ln 2 / 2, exp(x) = 2^n exp(r), and exp(r) by its Taylor sum.
    """
    x = min(max(x, LOWEST), HIGHEST)
    n = rint(x * LOG2_E)
    r = (x - n * LN_2_HIGH) - n * LN_2_LOW
    p = np.float32(1 / 5040)
    p = p * r + np.float32(1 / 720)
    p = p * r + np.float32(1 / 120)
    p = p * r + np.float32(1 / 24)
    p = p * r + np.float32(1 / 6)
    p = p * r + np.float32(1 / 2)
    p = p * r + np.float32(1)
    p = p * r + np.float32(1)
    return p * bits_to_float((np.int32(n) + np.int32(127)) << np.int32(23))
