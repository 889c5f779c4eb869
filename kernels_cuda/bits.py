"""Numbers and their bits, as PTX instructions."""

from llvmlite import ir
from numba import cuda
from numba.cuda import types
from numba.cuda.extending import intrinsic

INT16, INT32, FLOAT = ir.IntType(16), ir.IntType(32), ir.FloatType()


def _instruction(result, argument, text, constraints):
    """An intrinsic of one inline PTX instruction from one operand."""

    @intrinsic
    def apply(typing_context, x):
        def generate(context, builder, signature, arguments):
            kind = ir.FunctionType(LLVM[result], [LLVM[argument]])
            return builder.call(ir.InlineAsm(kind, text, constraints), arguments)

        return result(argument), generate

    return apply


LLVM = {types.uint16: INT16, types.int32: INT32, types.float32: FLOAT}

_half_to_float = _instruction(types.float32, types.uint16, "cvt.f32.f16 $0, $1;", "=f,h")
_float_to_half = _instruction(types.uint16, types.float32, "cvt.rn.f16.f32 $0, $1;", "=h,f")
_bits_to_float = _instruction(types.float32, types.int32, "mov.b32 $0, $1;", "=f,r")


_rint = _instruction(types.float32, types.float32, "cvt.rni.f32.f32 $0, $1;", "=f,f")


@cuda.jit(device=True)
def half_to_float(bits):
    return _half_to_float(bits)


@cuda.jit(device=True)
def float_to_half(x):
    return _float_to_half(x)


@cuda.jit(device=True)
def bits_to_float(bits):
    return _bits_to_float(bits)


@cuda.jit(device=True)
def rint(x):
    return _rint(x)
