"""Memory by address: words, and array views that own nothing."""

from functools import cache

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np import arrayobj

from llama3jit.ops import views

WORD = 8
INT64 = ir.IntType(64)


def _loader(numba_type, llvm_type):
    @intrinsic
    def load(typing_context, address):
        def generate(context, builder, signature, arguments):
            return builder.load(builder.inttoptr(arguments[0], llvm_type.as_pointer()))

        return numba_type(types.int64), generate

    return load


load_i64 = _loader(types.int64, INT64)
load_f32 = _loader(types.float32, ir.FloatType())


@intrinsic
def store_i64(typing_context, address, value):
    def generate(context, builder, signature, arguments):
        builder.store(arguments[1], builder.inttoptr(arguments[0], INT64.as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


def _bytes_loader(bits):
    @intrinsic
    def load(typing_context, array, at):
        """An unsigned number from byte `at` of an array u8, at any alignment."""

        def generate(context, builder, signature, arguments):
            pointer = _byte_address(context, builder, signature.args[0], *arguments, bits)
            value = builder.load(pointer)
            value.align = 1
            return builder.zext(value, INT64)

        return types.int64(array, types.intp), generate

    return load


def _bytes_storer(bits):
    @intrinsic
    def store(typing_context, array, at, value):
        """The low bits of a number to byte `at` of an array u8, at any alignment."""

        def generate(context, builder, signature, arguments):
            pointer = _byte_address(context, builder, signature.args[0], *arguments[:2], bits)
            low = builder.trunc(arguments[2], ir.IntType(bits))
            builder.store(low, pointer).align = 1
            return context.get_dummy_value()

        return types.void(array, types.intp, types.int64), generate

    return store


def _byte_address(context, builder, array_type, array, at, bits):
    data = cgutils.create_struct_proxy(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [at]), ir.IntType(bits).as_pointer())


load_u16, load_u32 = _bytes_loader(16), _bytes_loader(32)
store_u16, store_u32 = _bytes_storer(16), _bytes_storer(32)


@cache
def viewer(dtype, ndim):
    """See llama3jit.ops.views."""
    return views.viewer(
        dtype, ndim, types=types, cgutils=cgutils, arrayobj=arrayobj, intrinsic=intrinsic
    )


@intrinsic
def call_op(typing_context, op, row, first, end):
    """Call the compiled op at address `op` on the items first:end of a row; 0 is success."""

    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(INT64, [INT64, INT64, INT64])
        return builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), arguments[1:])

    return types.int64(*[types.int64] * 4), generate


@intrinsic
def call_count(typing_context, count, row):
    """Call the compiled item count at address `count` on a row."""

    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(INT64, [INT64])
        return builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), arguments[1:])

    return types.int64(types.int64, types.int64), generate
