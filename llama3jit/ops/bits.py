"""Numbers and their bits, each with a form for every face."""

from __future__ import annotations

import struct

import numpy as np

from llama3jit.ops.faces import Faced


def _half_to_float(bits):
    return np.uint16(bits).view(np.float16).astype(np.float32)


def _float_to_half(x):
    with np.errstate(over="ignore"):
        return np.float32(x).astype(np.float16).view(np.uint16)


def _bits_to_float(bits):
    return np.float32(struct.unpack("<f", struct.pack("<I", int(bits) & 0xFFFFFFFF))[0])


# half_to_float(uint16) -> float32; float_to_half(float32) -> uint16, to nearest, ties to even;
# bits_to_float(int32) -> float32 of the same bits.
half_to_float = Faced(
    _half_to_float, "kernels_cpu.bits:half_to_float", "kernels_cuda.bits:half_to_float"
)
float_to_half = Faced(
    _float_to_half, "kernels_cpu.bits:float_to_half", "kernels_cuda.bits:float_to_half"
)
bits_to_float = Faced(
    _bits_to_float, "kernels_cpu.bits:bits_to_float", "kernels_cuda.bits:bits_to_float"
)


# rint(float32) -> float32: the nearest whole number, halves to even.
rint = Faced(np.rint, "kernels_cpu.bits:rint", "kernels_cuda.bits:rint")
