"""Compiled code is tried on a tiny input before it is trusted: one op, walked by one thread."""

from __future__ import annotations

import ctypes

from kernels_cpu import control
from llama3jit.compile.loading import Addresses
from llama3jit.compile.units import Unit, exports
from llama3jit.errors import CompileError

PROBE = Unit("llama3jit.ops.add", "add")


def check(addresses: Addresses, walker: Unit) -> None:
    """Add two vectors of 21 numbers by one pass of the walker, if both are among the units.

    Raises CompileError if the sums are not right.
    """
    if PROBE not in addresses or walker not in addresses:
        return
    n = 21
    out = (ctypes.c_float * n)(*range(n))
    x = (ctypes.c_float * n)(*(0.5 * i for i in range(n)))
    dims = (ctypes.c_int64 * 2)(1, n)
    row = (ctypes.c_int64 * 8)(
        addresses[PROBE]["entry"],
        addresses[PROBE]["count"],
        64,
        1,
        ctypes.addressof(out),
        ctypes.addressof(x),
        ctypes.addressof(dims),
        ctypes.addressof(dims) + 8,
    )
    block = (ctypes.c_int64 * ((control.CONTROL_BYTES + control.LINE) // control.WORD))()
    block[control.THREADS // control.WORD] = 1
    words = (ctypes.c_int64 * 2)()
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * exports(walker)["run"])
    run = kind(addresses[walker]["run"])
    status = run(
        ctypes.addressof(block),
        ctypes.addressof(row),
        1,
        ctypes.addressof(words),
        ctypes.addressof(words) + 8,
    )
    if status != 0 or list(out) != [1.5 * i for i in range(n)]:
        raise CompileError("compiled code gives wrong results on this processor")
