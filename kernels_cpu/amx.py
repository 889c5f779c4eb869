"""Products of tiles: AMX, on processors and systems that let a program use it.

A tile register is up to 16 rows of 64 bytes. Formats and names: Intel's instruction set reference,
"TDPBSSD".
"""

from llvmlite import ir
from numba import types

from kernels_cpu.vectors import ARRAY, INT8, INT16, INT32, INT64, call, operation

intp, void = types.intp, types.void
TOKENS = 16  # rows of a tile of products
SUM, LEFT, RIGHT = (INT8(i) for i in range(3))
VOID = ir.VoidType()


@operation(void, ARRAY, intp)
def configure_tiles(builder, memory, quads):
    """Set the tiles for `multiply_tile` on 4 `quads` columns, with the help of 64 bytes."""
    quads = builder.trunc(quads, INT32)
    zero = ir.Constant(ir.VectorType(INT8, 64), [0] * 64)
    memory.store(INT64(0), zero)
    memory.store(INT64(0), INT8(1))  # the one palette there is
    bytes_of_row = (INT16(64), builder.trunc(builder.mul(quads, INT32(4)), INT16), INT16(64))
    rows = (INT8(TOKENS), INT8(TOKENS), builder.trunc(quads, INT8))
    for i in range(3):
        memory.store(INT64(16 + 2 * i), bytes_of_row[i])
        memory.store(INT64(48 + i), rows[i])
    call(builder, "llvm.x86.ldtilecfg", VOID, memory.at(INT64(0), INT8))


@operation(void)
def release_tiles(builder):
    """Give the tiles up, so that the system need not save them."""
    call(builder, "llvm.x86.tilerelease", VOID)


@operation(void, ARRAY, intp, ARRAY, intp, intp, ARRAY, intp, intp)
def multiply_tile(builder, out, at, x, x_at, x_row, values, value_at, value_row):
    """out[at + 16 i + r] = the sum of x[x_at + x_row i + 4 q + j] * values[value_at + value_row q +
    4 r + j] over q and j < 4, for 16 tokens i and 16 rows r; signed bytes."""
    call(builder, "llvm.x86.tilezero", VOID, SUM)
    call(builder, "llvm.x86.tileloadd64", VOID, LEFT, x.at(x_at, INT8), x_row)
    call(builder, "llvm.x86.tileloadd64", VOID, RIGHT, values.at(value_at, INT8), value_row)
    call(builder, "llvm.x86.tdpbssd", VOID, SUM, LEFT, RIGHT)
    call(builder, "llvm.x86.tilestored64", VOID, SUM, out.at(at, INT8), INT64(64))
