"""Vectors as numba types, their operations as LLVM instructions.

Every vector holds 16 lanes of 32 bits, or the 64 bytes of one such: one register where registers
have 512 bits; LLVM splits it where they are narrower. Operations keep the order they are written
in: sums of products are `fma`, never a product and a sum that might or might not be fused.
"""

import operator

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, overload, register_model

from kernels_cpu import features

LANES = 16
INT8, INT16, INT32, INT64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
FLOAT, HALF = ir.FloatType(), ir.HalfType()


def lanes_of(element, n=LANES):
    return ir.VectorType(element, n)


class Vector(types.Type):
    """A SIMD register's worth of values."""

    def __init__(self, name, llvm_type):
        self.llvm_type = llvm_type
        super().__init__(name=name)


@register_model(Vector)
class VectorModel(models.PrimitiveModel):
    def __init__(self, manager, vector):
        super().__init__(manager, vector, vector.llvm_type)


f32x16 = Vector("f32x16", lanes_of(FLOAT))
i32x16 = Vector("i32x16", lanes_of(INT32))
u8x64 = Vector("u8x64", lanes_of(INT8, 64))


class Registers(types.Type):
    """A few vectors, meant to live in registers: index them by loops of constant length alone."""

    def __init__(self, vector, n):
        self.vector = vector
        self.n = n
        super().__init__(name=f"Registers({vector.name}, {n})")


@register_model(Registers)
class RegistersModel(models.PrimitiveModel):
    def __init__(self, manager, registers):
        super().__init__(manager, registers, registers.vector.llvm_type.as_pointer())


def _registers(vector):
    @intrinsic
    def make(typing_context, n):
        """`n` vectors (a constant), their contents not set."""
        if not isinstance(n, types.IntegerLiteral):
            return None

        def generate(context, builder, signature, arguments):
            with builder.goto_entry_block():
                return builder.alloca(vector.llvm_type, n.literal_value)

        return Registers(vector, n.literal_value)(n), generate

    return make


f32_registers = _registers(f32x16)
i32_registers = _registers(i32x16)


@intrinsic
def _get(typing_context, registers, i):
    def generate(context, builder, signature, arguments):
        return builder.load(builder.gep(arguments[0], [arguments[1]]))

    return registers.vector(registers, types.intp), generate


@intrinsic
def _set(typing_context, registers, i, value):
    def generate(context, builder, signature, arguments):
        builder.store(arguments[2], builder.gep(arguments[0], [arguments[1]]))
        return context.get_dummy_value()

    return types.void(registers, types.intp, registers.vector), generate


@overload(operator.getitem, inline="never")
def _registers_getitem(registers, i):
    if isinstance(registers, Registers):
        return lambda registers, i: _get(registers, i)
    return None


@overload(operator.setitem, inline="never")
def _registers_setitem(registers, i, value):
    if isinstance(registers, Registers):
        return lambda registers, i, value: _set(registers, i, value)
    return None


def _address(context, builder, array_type, array, offset, llvm_type):
    """A pointer to element `offset` of a C-contiguous array seen as one-dimensional."""
    data = cgutils.create_struct_proxy(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [offset]), llvm_type.as_pointer())


def _loader(vector, stored, convert):
    """An intrinsic `load(array, offset)` of a vector of `stored` elements, at any alignment."""

    @intrinsic
    def load(typing_context, array, offset):
        def generate(context, builder, signature, arguments):
            array_type = signature.args[0]
            pointer = _address(context, builder, array_type, *arguments, stored)
            value = builder.load(pointer)
            value.align = 1
            return convert(builder, value)

        return vector(array, types.intp), generate

    return load


load_f32 = _loader(f32x16, lanes_of(FLOAT), lambda b, v: v)
load_u8 = _loader(u8x64, lanes_of(INT8, 64), lambda b, v: v)
# 16 halves, bfloats, widened; the array may be of bytes.
load_half = _loader(f32x16, lanes_of(HALF), lambda b, v: b.fpext(v, lanes_of(FLOAT)))
load_bfloat = _loader(
    f32x16,
    lanes_of(INT16),
    lambda b, v: b.bitcast(
        b.shl(b.zext(v, lanes_of(INT32)), ir.Constant(lanes_of(INT32), [16] * LANES)),
        lanes_of(FLOAT),
    ),
)


@intrinsic
def prefetch(typing_context, array, offset):
    """Ask for the cache line of element `offset`; it need not be inside the array."""

    def generate(context, builder, signature, arguments):
        pointer = _address(context, builder, signature.args[0], *arguments, INT8)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, INT32, INT32, INT32])
        name = "llvm.prefetch.p0"
        request = cgutils.get_or_insert_function(builder.module, kind, name)
        builder.call(request, [pointer, INT32(0), INT32(3), INT32(1)])
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


def _splat(builder, value, n=LANES):
    """The value in every lane."""
    vector = lanes_of(value.type, n)
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(INT32, 0))
    zeros = ir.Constant(lanes_of(INT32, n), [0] * n)
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), zeros)


def _spreader(vector, stored):
    """An intrinsic `spread(array, offset)`: one element of type `stored` in every lane."""

    @intrinsic
    def spread(typing_context, array, offset):
        def generate(context, builder, signature, arguments):
            pointer = _address(context, builder, signature.args[0], *arguments, stored)
            value = builder.load(pointer)
            value.align = 1
            return _splat(builder, value)

        return vector(array, types.intp), generate

    return spread


spread_f32 = _spreader(f32x16, FLOAT)
spread_i32 = _spreader(i32x16, INT32)  # of an int8 array: 4 bytes from `offset` on


def _splatter(vector, scalar):
    @intrinsic
    def splat(typing_context, value):
        def generate(context, builder, signature, arguments):
            return _splat(builder, arguments[0])

        return vector(scalar), generate

    return splat


splat_f32 = _splatter(f32x16, types.float32)
splat_i32 = _splatter(i32x16, types.int32)


@intrinsic
def store_f32(typing_context, array, offset, value):
    def generate(context, builder, signature, arguments):
        array_value, at, vector = arguments
        pointer = _address(context, builder, signature.args[0], array_value, at, vector.type)
        builder.store(vector, pointer).align = 1
        return context.get_dummy_value()

    return types.void(array, types.intp, f32x16), generate


@intrinsic
def store_first_f32(typing_context, array, offset, value, n):
    """Store the first `n` lanes, n < 16."""

    def generate(context, builder, signature, arguments):
        array_value, at, vector, n = arguments
        pointer = _address(context, builder, signature.args[0], array_value, at, vector.type)
        counts = ir.Constant(lanes_of(INT64), list(range(LANES)))
        mask = builder.icmp_signed("<", counts, _splat(builder, n))
        kind = ir.FunctionType(
            ir.VoidType(), [vector.type, pointer.type, INT32, lanes_of(ir.IntType(1))]
        )
        name = "llvm.masked.store.v16f32.p0"
        store = cgutils.get_or_insert_function(builder.module, kind, name)
        builder.call(store, [vector, pointer, ir.Constant(INT32, 1), mask])
        return context.get_dummy_value()

    return types.void(array, types.intp, f32x16, types.intp), generate


def _call(builder, name, result, *arguments):
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


@intrinsic
def fma(typing_context, x, y, z):
    """x * y + z, rounded once."""

    def generate(context, builder, signature, arguments):
        return _call(builder, "llvm.fma.v16f32", lanes_of(FLOAT), *arguments)

    return f32x16(f32x16, f32x16, f32x16), generate


def _binary(vector, operation):
    @intrinsic
    def apply(typing_context, x, y):
        def generate(context, builder, signature, arguments):
            return operation(builder, *arguments)

        return vector(vector, vector), generate

    return apply


mul = _binary(f32x16, lambda b, x, y: b.fmul(x, y))
add = _binary(f32x16, lambda b, x, y: b.fadd(x, y))
sub = _binary(f32x16, lambda b, x, y: b.fsub(x, y))
div = _binary(f32x16, lambda b, x, y: b.fdiv(x, y))
# One instruction each: of a NaN and a number they give y.
maximum = _binary(f32x16, lambda b, x, y: b.select(b.fcmp_ordered(">", x, y), x, y))
minimum = _binary(f32x16, lambda b, x, y: b.select(b.fcmp_ordered("<", x, y), x, y))


@intrinsic
def to_float(typing_context, x):
    def generate(context, builder, signature, arguments):
        return builder.sitofp(arguments[0], lanes_of(FLOAT))

    return f32x16(i32x16), generate


@intrinsic
def nibbles(typing_context, x, high):
    """The low halves of the bytes, or with high = 1 the high ones."""

    def generate(context, builder, signature, arguments):
        shift = _splat(builder, builder.trunc(builder.mul(arguments[1], INT64(4)), INT8), 64)
        value = builder.lshr(arguments[0], shift)
        return builder.and_(value, ir.Constant(value.type, [15] * 64))

    return u8x64(u8x64, types.intp), generate


@intrinsic
def byte_of(typing_context, x, k):
    """Byte k of every lane, as a float: x is u8x64, lane i its bytes 4i to 4i + 3."""

    def generate(context, builder, signature, arguments):
        words = builder.bitcast(arguments[0], lanes_of(INT32))
        shift = _splat(builder, builder.trunc(builder.mul(arguments[1], INT64(8)), INT32))
        byte = builder.and_(builder.lshr(words, shift), ir.Constant(words.type, [255] * LANES))
        return builder.sitofp(byte, lanes_of(FLOAT))

    return f32x16(u8x64, types.intp), generate


@intrinsic
def dot4(typing_context, total, u, s):
    """total + the sum of u[4i + j] * s[4i + j] over j < 4, for every lane i; u is unsigned, the
    bytes of s are signed."""

    def generate(context, builder, signature, arguments):
        total, u, s = arguments
        if features.has("avx512vnni"):
            bytes_of_s = builder.bitcast(s, lanes_of(INT8, 64))
            return _call(builder, "llvm.x86.avx512.vpdpbusd.512", total.type, total, u, bytes_of_s)
        if features.has("avxvnni"):
            return _by_halves(builder, total, u, s)
        return _dot4_widened(builder, total, u, s)

    return i32x16(i32x16, u8x64, i32x16), generate


def _part(builder, value, first, n):
    undefined = ir.Constant(value.type, ir.Undefined)
    places = ir.Constant(lanes_of(INT32, n), list(range(first, first + n)))
    return builder.shuffle_vector(value, undefined, places)


def _by_halves(builder, total, u, s):
    """VNNI on two registers of 256 bits."""
    halves = []
    s = builder.bitcast(s, lanes_of(INT8, 64))
    for half in (0, 1):
        parts = (
            _part(builder, total, 8 * half, 8),
            _part(builder, u, 32 * half, 32),
            _part(builder, s, 32 * half, 32),
        )
        name = "llvm.x86.avx512.vpdpbusd.256"
        halves.append(_call(builder, name, lanes_of(INT32, 8), *parts))
    everything = ir.Constant(lanes_of(INT32), list(range(LANES)))
    return builder.shuffle_vector(*halves, everything)


def _dot4_widened(builder, total, u, s):
    """Products in 16 bits, where 255 * 128 fits, then sums in 32. Bytes 0 and 2 of a lane meet in
    one product of 16-bit halves, bytes 1 and 3 in another."""
    pairs = lanes_of(INT16, 32)
    u, s = builder.bitcast(u, pairs), builder.bitcast(s, pairs)
    eight = ir.Constant(pairs, [8] * 32)
    low_mask = ir.Constant(pairs, [255] * 32)
    even = builder.mul(builder.and_(u, low_mask), builder.ashr(builder.shl(s, eight), eight))
    odd = builder.mul(builder.lshr(u, eight), builder.ashr(s, eight))
    for product in (even, odd):
        words = builder.bitcast(product, lanes_of(INT32))
        sixteen = ir.Constant(words.type, [16] * LANES)
        total = builder.add(total, builder.ashr(builder.shl(words, sixteen), sixteen))
        total = builder.add(total, builder.ashr(words, sixteen))
    return total


@intrinsic
def round_to_i32(typing_context, x):
    """To the nearest whole number, halves to even; the numbers must fit."""

    def generate(context, builder, signature, arguments):
        nearest = _call(builder, "llvm.rint.v16f32", lanes_of(FLOAT), *arguments)
        return builder.fptosi(nearest, lanes_of(INT32))

    return i32x16(f32x16), generate


@intrinsic
def store_i8(typing_context, array, offset, value):
    """Store the low byte of every lane."""

    def generate(context, builder, signature, arguments):
        array_value, at, vector = arguments
        narrow = builder.trunc(vector, lanes_of(INT8))
        pointer = _address(context, builder, signature.args[0], array_value, at, narrow.type)
        builder.store(narrow, pointer).align = 1
        return context.get_dummy_value()

    return types.void(array, types.intp, i32x16), generate


def _folder(vector, scalar, combine):
    """An intrinsic that folds 16 lanes to one: halves onto each other, four times."""

    @intrinsic
    def fold(typing_context, x):
        def generate(context, builder, signature, arguments):
            value, n = arguments[0], LANES
            while n > 1:
                n //= 2
                value = combine(builder, _part(builder, value, 0, n), _part(builder, value, n, n))
            return builder.extract_element(value, ir.Constant(INT32, 0))

        return scalar(vector), generate

    return fold


@intrinsic
def magnitude_bits(typing_context, x):
    """The bits of |x|: as whole numbers they are ordered as the magnitudes are, NaN above all."""

    def generate(context, builder, signature, arguments):
        bits = builder.bitcast(arguments[0], lanes_of(INT32))
        return builder.and_(bits, ir.Constant(bits.type, [0x7FFFFFFF] * LANES))

    return i32x16(f32x16), generate


maximum_i32 = _binary(i32x16, lambda b, x, y: b.select(b.icmp_signed(">", x, y), x, y))
largest_of_i32 = _folder(
    i32x16, types.int32, lambda b, x, y: b.select(b.icmp_signed(">", x, y), x, y)
)
largest_of = _folder(
    f32x16, types.float32, lambda b, x, y: b.select(b.fcmp_ordered(">", x, y), x, y)
)
sum_of = _folder(f32x16, types.float32, lambda b, x, y: b.fadd(x, y))
sum_of_i32 = _folder(i32x16, types.int32, lambda b, x, y: b.add(x, y))


@intrinsic
def power_of_two(typing_context, n):
    """2^n for whole -126 <= n <= 127 in float lanes."""

    def generate(context, builder, signature, arguments):
        whole = builder.fptosi(arguments[0], lanes_of(INT32))
        biased = builder.add(whole, ir.Constant(whole.type, [127] * LANES))
        bits = builder.shl(biased, ir.Constant(whole.type, [23] * LANES))
        return builder.bitcast(bits, lanes_of(FLOAT))

    return f32x16(f32x16), generate


@intrinsic
def nearest(typing_context, x):
    def generate(context, builder, signature, arguments):
        return _call(builder, "llvm.rint.v16f32", lanes_of(FLOAT), *arguments)

    return f32x16(f32x16), generate


@intrinsic
def keep_between(typing_context, x, first, end, other):
    """Lanes first <= i < end of x, and `other` in the rest."""

    def generate(context, builder, signature, arguments):
        x, first, end, other = arguments
        indices = ir.Constant(lanes_of(INT64), list(range(LANES)))
        inside = builder.and_(
            builder.icmp_signed(">=", indices, _splat(builder, first)),
            builder.icmp_signed("<", indices, _splat(builder, end)),
        )
        return builder.select(inside, x, other)

    return f32x16(f32x16, types.intp, types.intp, f32x16), generate
