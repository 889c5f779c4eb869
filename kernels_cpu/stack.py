"""Scratch arrays on the stack of the running thread."""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array

INT64 = ir.IntType(64)


def _stack(element, itemsize):
    @intrinsic
    def stack(typing_context, n):
        """A one-dimensional array of `n` elements (a constant), their contents not set; gone when
        the function that asked for it returns."""
        if not isinstance(n, types.IntegerLiteral):
            return None
        array_type = types.Array(element, 1, "C", aligned=True)

        def generate(context, builder, signature, arguments):
            kind = ir.ArrayType(context.get_data_type(element), n.literal_value)
            with builder.goto_entry_block():
                memory = builder.alloca(kind)
                memory.align = 64
            array = make_array(array_type)(context, builder)
            pointer = builder.bitcast(memory, context.get_data_type(element).as_pointer())
            populate_array(
                array,
                data=pointer,
                shape=cgutils.pack_array(builder, [INT64(n.literal_value)], ty=INT64),
                strides=cgutils.pack_array(builder, [INT64(itemsize)], ty=INT64),
                itemsize=INT64(itemsize),
                meminfo=None,
            )
            return array._getvalue()

        return array_type(n), generate

    return stack


stack_u8 = _stack(types.uint8, 1)
stack_i32 = _stack(types.int32, 4)
stack_f32 = _stack(types.float32, 4)
stack_i64 = _stack(types.int64, 8)
stack_u8 = _stack(types.uint8, 1)
