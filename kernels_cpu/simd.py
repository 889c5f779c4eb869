"""Operations on vectors of 16 floats.

They keep the order in which they are written: sums of products are `fma`, never a product and a sum
that might or might not be fused.
"""

from llvmlite import ir
from numba import types

from kernels_cpu.vectors import (
    ARRAY,
    FLOAT,
    HALF,
    INT8,
    INT16,
    INT32,
    INT64,
    LANES,
    call,
    constant,
    f32x16,
    fold,
    i32x16,
    lanes_of,
    operation,
    splat,
)

FLOATS, INTS = lanes_of(FLOAT), lanes_of(INT32)
intp, void, float32 = types.intp, types.void, types.float32


@operation(f32x16, ARRAY, intp)
def load_f32(builder, array, offset):
    return array.load(offset, FLOATS)


@operation(f32x16, ARRAY, intp)
def load_half(builder, array, offset):
    """16 halves, widened; the array may be of bytes."""
    return builder.fpext(array.load(offset, lanes_of(HALF)), FLOATS)


@operation(f32x16, ARRAY, intp)
def load_bfloat(builder, array, offset):
    """16 bfloats, widened; the array may be of bytes."""
    bits = builder.zext(array.load(offset, lanes_of(INT16)), INTS)
    return builder.bitcast(builder.shl(bits, constant(INTS, 16)), FLOATS)


@operation(float32, ARRAY, intp)
def load_scalar(builder, array, offset):
    """One float."""
    return array.load(offset, FLOAT)


@operation(f32x16, ARRAY, intp)
def spread_f32(builder, array, offset):
    """One float in every lane."""
    return splat(builder, array.load(offset, FLOAT))


@operation(float32, ARRAY, intp)
def float_at(builder, array, offset):
    return array.load(offset, FLOAT)


@operation(f32x16, float32)
def splat_f32(builder, value):
    return splat(builder, value)


@operation(void, ARRAY, intp, f32x16)
def store_f32(builder, array, offset, value):
    array.store(offset, value)


@operation(void, ARRAY, intp, f32x16, intp)
def store_first_f32(builder, array, offset, value, n):
    """Store the first `n` lanes, n < 16."""
    indices = ir.Constant(lanes_of(INT64), list(range(LANES)))
    mask = builder.icmp_signed("<", indices, splat(builder, n))
    pointer = array.at(offset, FLOATS)
    call(builder, "llvm.masked.store.v16f32.p0", ir.VoidType(), value, pointer, INT32(1), mask)


@operation(void, ARRAY, intp)
def prefetch(builder, array, offset):
    """Ask for the cache line of element `offset`; it need not be inside the array."""
    pointer = array.at(offset, INT8)
    call(builder, "llvm.prefetch.p0", ir.VoidType(), pointer, INT32(0), INT32(3), INT32(1))


@operation(void)
def in_order(builder):
    """Keep loads and stores on their side of this: the compiler would load so much beforehand that
    it runs out of registers."""
    kind = ir.FunctionType(ir.VoidType(), [])
    builder.asm(kind, "", "~{memory}", [], side_effect=True)


@operation(f32x16, f32x16, f32x16, f32x16)
def fma(builder, x, y, z):
    """x * y + z, rounded once."""
    return call(builder, "llvm.fma.v16f32", FLOATS, x, y, z)


@operation(f32x16, f32x16, f32x16)
def mul(builder, x, y):
    return builder.fmul(x, y)


@operation(f32x16, f32x16, f32x16)
def add(builder, x, y):
    return builder.fadd(x, y)


@operation(f32x16, f32x16, f32x16)
def sub(builder, x, y):
    return builder.fsub(x, y)


@operation(f32x16, f32x16, f32x16)
def div(builder, x, y):
    return builder.fdiv(x, y)


@operation(f32x16, f32x16)
def negate(builder, x):
    return builder.fneg(x)


def _larger(builder, x, y):
    return builder.select(builder.fcmp_ordered(">", x, y), x, y)


@operation(f32x16, f32x16, f32x16)
def maximum(builder, x, y):
    """One instruction: of a NaN and a number it gives y."""
    return _larger(builder, x, y)


@operation(f32x16, f32x16, f32x16)
def minimum(builder, x, y):
    """One instruction: of a NaN and a number it gives y."""
    return builder.select(builder.fcmp_ordered("<", x, y), x, y)


@operation(float32, f32x16)
def largest_of(builder, x):
    return fold(builder, x, _larger)


@operation(float32, f32x16)
def sum_of(builder, x):
    return fold(builder, x, lambda b, low, high: b.fadd(low, high))


@operation(f32x16, f32x16)
def nearest(builder, x):
    """The nearest whole number, halves to even."""
    return call(builder, "llvm.rint.v16f32", FLOATS, x)


@operation(f32x16, f32x16)
def hadamard_of_16(builder, x):
    """The sums of all lanes, with the signs of a row of a Hadamard matrix in each lane."""
    for distance in (1, 2, 4, 8):
        places = ir.Constant(lanes_of(INT32), [i ^ distance for i in range(LANES)])
        signs = ir.Constant(FLOATS, [-1.0 if i & distance else 1.0 for i in range(LANES)])
        partner = builder.shuffle_vector(x, ir.Constant(FLOATS, ir.Undefined), places)
        x = builder.fadd(partner, builder.fmul(x, signs))
    return x


@operation(f32x16, f32x16)
def power_of_two(builder, n):
    """2^n for whole -126 <= n <= 127."""
    biased = builder.add(builder.fptosi(n, INTS), constant(INTS, 127))
    return builder.bitcast(builder.shl(biased, constant(INTS, 23)), FLOATS)


@operation(f32x16, i32x16)
def to_float(builder, x):
    return builder.sitofp(x, FLOATS)


@operation(f32x16, f32x16, intp, intp, f32x16)
def keep_between(builder, x, first, end, other):
    """Lanes first <= i < end of x, and `other` in the rest."""
    indices = ir.Constant(lanes_of(INT64), list(range(LANES)))
    inside = builder.and_(
        builder.icmp_signed(">=", indices, splat(builder, first)),
        builder.icmp_signed("<", indices, splat(builder, end)),
    )
    return builder.select(inside, x, other)


@operation(f32x16, f32x16, f32x16)
def keep_where(builder, x, by):
    """Lanes of x where `by` is not 0, and 0 in the rest."""
    return builder.select(
        builder.fcmp_unordered("!=", by, constant(FLOATS, 0.0)), x, constant(FLOATS, 0.0)
    )
