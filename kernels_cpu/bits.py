"""Numbers and their bits, as LLVM instructions."""

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

HALF = ir.HalfType()


@intrinsic
def _half_to_float(typing_context, bits):
    def generate(context, builder, signature, arguments):
        return builder.fpext(builder.bitcast(arguments[0], HALF), ir.FloatType())

    return types.float32(types.uint16), generate


@intrinsic
def _float_to_half(typing_context, x):
    def generate(context, builder, signature, arguments):
        return builder.bitcast(builder.fptrunc(arguments[0], HALF), ir.IntType(16))

    return types.uint16(types.float32), generate


@intrinsic
def _bits_to_float(typing_context, bits):
    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), generate


@intrinsic
def _rint(typing_context, x):
    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(ir.FloatType(), [ir.FloatType()])
        nearest = builder.module.declare_intrinsic("llvm.rint", [ir.FloatType()], kind)
        return builder.call(nearest, arguments)

    return types.float32(types.float32), generate


@njit
def half_to_float(bits):
    return _half_to_float(bits)


@njit
def float_to_half(x):
    return _float_to_half(x)


@njit
def bits_to_float(bits):
    return _bits_to_float(bits)


@njit
def rint(x):
    return _rint(x)
