"""Operations on vectors of 16 whole numbers and of 64 bytes."""

from llvmlite import ir
from numba import types

from kernels_cpu import features
from kernels_cpu.vectors import (
    ARRAY,
    BYTES,
    FLOAT,
    INT8,
    INT16,
    INT32,
    INT64,
    call,
    constant,
    f32x16,
    fold,
    i32x16,
    joined,
    lanes_of,
    operation,
    part,
    splat,
    u8x64,
)

FLOATS, INTS, CHARS = lanes_of(FLOAT), lanes_of(INT32), lanes_of(INT8, BYTES)
PAIRS = lanes_of(INT16, 32)
intp, void, int32 = types.intp, types.void, types.int32


@operation(u8x64, ARRAY, intp)
def load_u8(builder, array, offset):
    return array.load(offset, CHARS)


@operation(void, ARRAY, intp, u8x64)
def store_u8(builder, array, offset, value):
    array.store(offset, value)


@operation(u8x64, intp)
def splat_u8(builder, value):
    return splat(builder, builder.trunc(value, INT8), BYTES)


@operation(i32x16, ARRAY, intp)
def load_i32s(builder, array, offset):
    return array.load(offset, INTS)


@operation(i32x16, ARRAY, intp)
def load_bytes(builder, array, offset):
    """16 bytes, widened."""
    return builder.zext(array.load(offset, lanes_of(INT8)), INTS)


@operation(i32x16, ARRAY, intp)
def load_signed_bytes(builder, array, offset):
    """16 signed bytes, widened."""
    return builder.sext(array.load(offset, lanes_of(INT8)), INTS)


@operation(i32x16, ARRAY, intp)
def load_pairs(builder, array, offset):
    """16 words of two bytes from byte `offset` on, widened."""
    return builder.zext(array.load(offset, lanes_of(INT16)), INTS)


@operation(i32x16, ARRAY, intp)
def load_words(builder, array, offset):
    """16 words of four bytes from byte `offset` on."""
    return array.load(offset, INTS)


@operation(i32x16, ARRAY, intp)
def spread_i32(builder, array, offset):
    """The four bytes from `offset` on, in every lane."""
    return splat(builder, array.load(offset, INT32))


@operation(int32, ARRAY, intp)
def load_i32(builder, array, offset):
    """One number."""
    return array.load(offset, INT32)


@operation(i32x16, int32)
def splat_i32(builder, value):
    return splat(builder, value)


@operation(void, ARRAY, intp, i32x16)
def store_i8(builder, array, offset, value):
    """Store the low byte of every lane."""
    array.store(offset, builder.trunc(value, lanes_of(INT8)))


@operation(i32x16, i32x16, i32x16)
def add_i32(builder, x, y):
    return builder.add(x, y)


@operation(u8x64, u8x64, u8x64)
def add_u8(builder, x, y):
    return builder.add(x, y)


@operation(i32x16, i32x16, intp, intp)
def bits_of(builder, x, shift, mask):
    """(x >> shift) & mask, lane by lane."""
    moved = builder.lshr(x, splat(builder, builder.trunc(shift, INT32)))
    return builder.and_(moved, splat(builder, builder.trunc(mask, INT32)))


@operation(i32x16, i32x16, i32x16, intp)
def or_shifted(builder, x, y, shift):
    """x | y << shift, lane by lane."""
    return builder.or_(x, builder.shl(y, splat(builder, builder.trunc(shift, INT32))))


@operation(u8x64, u8x64, intp, intp, intp)
def shifted_bytes(builder, x, right, mask, left):
    """((x >> right) & mask) << left, byte by byte. The shifts are of 16 bits, which machines have;
    the mask takes off what came from the neighbour, as long as mask << left fits in a byte and mask
    in 8 - right bits."""
    pairs = builder.bitcast(x, PAIRS)
    pairs = builder.lshr(pairs, splat(builder, builder.trunc(right, INT16), 32))
    kept = builder.and_(
        builder.bitcast(pairs, CHARS), splat(builder, builder.trunc(mask, INT8), BYTES)
    )
    pairs = builder.bitcast(kept, PAIRS)
    pairs = builder.shl(pairs, splat(builder, builder.trunc(left, INT16), 32))
    return builder.bitcast(pairs, CHARS)


@operation(u8x64, u8x64, intp)
def spread_bits(builder, x, first):
    """Bits first to first + 3 of every lane of 32 bits, each to the lowest bit of a byte."""
    words = builder.bitcast(x, INTS)
    words = builder.lshr(words, splat(builder, builder.trunc(first, INT32)))
    words = builder.and_(words, constant(INTS, 15))
    # The factor moves bit i by 7 i, to bit 8 i.
    words = builder.mul(words, constant(INTS, 0x00204081))
    return builder.bitcast(builder.and_(words, constant(INTS, 0x01010101)), CHARS)


@operation(u8x64, u8x64, types.UniTuple(types.intp, 16))
def look_up(builder, x, table):
    """table[x] for bytes x below 16; the table holds bytes."""
    entries = [builder.trunc(builder.extract_value(table, i), INT8) for i in range(16)]
    if features.has("avx512bw"):
        return call(builder, "llvm.x86.avx512.pshuf.b.512", CHARS, _repeat(builder, entries, 4), x)
    if features.has("avx2"):
        halves = [
            call(
                builder,
                "llvm.x86.avx2.pshuf.b",
                lanes_of(INT8, 32),
                _repeat(builder, entries, 2),
                part(builder, x, 32 * half, 32),
            )
            for half in (0, 1)
        ]
        return joined(builder, *halves)
    value = splat(builder, entries[0], BYTES)
    for i in range(1, 16):
        here = builder.icmp_unsigned("==", x, constant(CHARS, i))
        value = builder.select(here, splat(builder, entries[i], BYTES), value)
    return value


def _repeat(builder, entries, times):
    """The entries one after the other, so many times over."""
    vector = ir.Constant(lanes_of(INT8, len(entries) * times), ir.Undefined)
    for i in range(len(entries) * times):
        vector = builder.insert_element(vector, entries[i % len(entries)], INT32(i))
    return vector


@operation(f32x16, u8x64, intp)
def byte_of(builder, x, k):
    """Byte k of every lane, as a float: lane i is bytes 4i to 4i + 3."""
    words = builder.bitcast(x, INTS)
    shift = splat(builder, builder.trunc(builder.mul(k, INT64(8)), INT32))
    byte = builder.and_(builder.lshr(words, shift), constant(INTS, 255))
    return builder.sitofp(byte, FLOATS)


@operation(f32x16, i32x16, intp)
def signed_byte_of(builder, x, k):
    """2^24 times byte k of every lane, which is signed."""
    shift = builder.sub(INT32(24), builder.shl(builder.trunc(k, INT32), INT32(3)))
    high = builder.and_(builder.shl(x, splat(builder, shift)), constant(INTS, 0xFF000000))
    return builder.sitofp(high, FLOATS)


@operation(f32x16, i32x16, intp)
def nibble_of(builder, x, k):
    """The four bits from 4 k on of every lane, less 8."""
    shift = builder.shl(builder.trunc(k, INT32), INT32(2))
    moved = builder.lshr(x, splat(builder, shift))
    if features.has("avx512f"):
        numbers = ir.Constant(FLOATS, [float(i - 8) for i in range(16)])
        # It looks at the lowest four bits alone.
        return call(builder, "llvm.x86.avx512.permvar.sf.512", FLOATS, numbers, moved)
    nibble = builder.and_(moved, constant(INTS, 15))
    return builder.sitofp(builder.sub(nibble, constant(INTS, 8)), FLOATS)


@operation(i32x16, i32x16, u8x64, i32x16)
def dot4(builder, total, u, s):
    """total + the sum of u[4i + j] * s[4i + j] over j < 4, for every lane i; u is unsigned, the
    bytes of s are signed."""
    if features.has("avx512vnni"):
        signed = builder.bitcast(s, CHARS)
        return call(builder, "llvm.x86.avx512.vpdpbusd.512", INTS, total, u, signed)
    if features.has("avxvnni"):
        return _dot4_by_halves(builder, total, u, s)
    return _dot4_widened(builder, total, u, s)


def _dot4_by_halves(builder, total, u, s):
    """VNNI on two registers of 256 bits."""
    s = builder.bitcast(s, CHARS)
    halves = [
        call(
            builder,
            "llvm.x86.avx512.vpdpbusd.256",
            lanes_of(INT32, 8),
            part(builder, total, 8 * half, 8),
            part(builder, u, 32 * half, 32),
            part(builder, s, 32 * half, 32),
        )
        for half in (0, 1)
    ]
    return joined(builder, *halves)


def _dot4_widened(builder, total, u, s):
    """Products in 16 bits, where 255 * 128 fits, then sums in 32. Bytes 0 and 2 of a lane meet in
    one product of 16-bit halves, bytes 1 and 3 in another."""
    u, s = builder.bitcast(u, PAIRS), builder.bitcast(s, PAIRS)
    eight, low_mask = constant(PAIRS, 8), constant(PAIRS, 255)
    even = builder.mul(builder.and_(u, low_mask), builder.ashr(builder.shl(s, eight), eight))
    odd = builder.mul(builder.lshr(u, eight), builder.ashr(s, eight))
    sixteen = constant(INTS, 16)
    for product in (even, odd):
        words = builder.bitcast(product, INTS)
        total = builder.add(total, builder.ashr(builder.shl(words, sixteen), sixteen))
        total = builder.add(total, builder.ashr(words, sixteen))
    return total


@operation(i32x16, f32x16)
def round_to_i32(builder, x):
    """To the nearest whole number, halves to even; the numbers must fit."""
    return builder.fptosi(call(builder, "llvm.rint.v16f32", FLOATS, x), INTS)


@operation(i32x16, f32x16)
def truncate_to_i32(builder, x):
    """Without what is behind the point; the numbers must fit."""
    return builder.fptosi(x, INTS)


@operation(i32x16, f32x16)
def round_away_to_i32(builder, x):
    """To the nearest whole number, halves away from 0; the numbers must fit."""
    whole = builder.fptosi(x, INTS)
    rest = builder.fsub(x, builder.sitofp(whole, FLOATS))
    up = builder.zext(builder.fcmp_ordered(">=", rest, constant(FLOATS, 0.5)), INTS)
    down = builder.zext(builder.fcmp_ordered("<=", rest, constant(FLOATS, -0.5)), INTS)
    return builder.sub(builder.add(whole, up), down)


@operation(i32x16, f32x16)
def magnitude_bits(builder, x):
    """The bits of |x|: as whole numbers they are ordered as the magnitudes are, NaN above all."""
    return builder.and_(builder.bitcast(x, INTS), constant(INTS, 0x7FFFFFFF))


@operation(f32x16, i32x16)
def power_of_two_bits(builder, exponents):
    """2^(e - 128) for bytes e, as MXFP4 means them."""
    normal = builder.shl(builder.sub(exponents, constant(INTS, 1)), constant(INTS, 23))
    tiny = builder.shl(constant(INTS, 0x00200000), exponents)
    bits = builder.select(builder.icmp_signed("<", exponents, constant(INTS, 2)), tiny, normal)
    return builder.bitcast(bits, FLOATS)


def _larger(builder, x, y):
    return builder.select(builder.icmp_signed(">", x, y), x, y)


@operation(i32x16, i32x16, i32x16)
def maximum_i32(builder, x, y):
    return _larger(builder, x, y)


@operation(i32x16, i32x16, i32x16)
def minimum_i32(builder, x, y):
    return builder.select(builder.icmp_signed("<", x, y), x, y)


@operation(intp, i32x16, int32)
def first_equal(builder, x, number):
    """The first lane that is this number, 16 if there is none."""
    same = builder.icmp_signed("==", x, splat(builder, number))
    mask = builder.zext(builder.bitcast(same, INT16), INT64)
    return builder.cttz(builder.or_(mask, INT64(1 << 16)), ir.IntType(1)(1))


@operation(int32, i32x16)
def largest_of_i32(builder, x):
    return fold(builder, x, _larger)


@operation(int32, i32x16)
def sum_of_i32(builder, x):
    return fold(builder, x, lambda b, low, high: b.add(low, high))
