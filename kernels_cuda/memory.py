"""Arrays of a fixed size: of a thread, which stay in registers where every index is known when it
is compiled, and of a block of threads."""

from llvmlite import ir
from numba.cuda import cgutils, types
from numba.cuda.extending import intrinsic
from numba.cuda.np.arrayobj import make_array, populate_array

INT64 = ir.IntType(64)
SHARED = 3  # the address space


def _view(context, builder, array_type, pointer, n):
    """A one-dimensional array at a pointer."""
    array = make_array(array_type)(context, builder)
    itemsize = context.get_abi_sizeof(context.get_data_type(array_type.dtype))
    element = context.get_data_type(array_type.dtype).as_pointer()
    populate_array(
        array,
        data=builder.bitcast(pointer, element),
        shape=cgutils.pack_array(builder, [ir.Constant(INT64, n)], ty=INT64),
        strides=cgutils.pack_array(builder, [ir.Constant(INT64, itemsize)], ty=INT64),
        itemsize=ir.Constant(INT64, itemsize),
        meminfo=None,
    )
    return array._getvalue()


def registers(n, dtype):
    """An intrinsic that makes an array of n values for each thread, not initialised."""
    array_type = types.Array(dtype, 1, "C")

    @intrinsic
    def make(typing_context):
        def generate(context, builder, signature, arguments):
            kind = ir.ArrayType(context.get_data_type(dtype), n)
            return _view(context, builder, array_type, cgutils.alloca_once(builder, kind), n)

        return array_type(), generate

    return make


def shared(n, dtype, alignment=16):
    """An intrinsic that makes an array of n values for a block of threads, not initialised."""
    array_type = types.Array(dtype, 1, "C")

    @intrinsic
    def make(typing_context):
        def generate(context, builder, signature, arguments):
            kind = ir.ArrayType(context.get_data_type(dtype), n)
            variable = cgutils.add_global_variable(builder.module, kind, "shared", SHARED)
            variable.linkage = "internal"
            variable.initializer = ir.Constant(kind, ir.Undefined)
            variable.align = alignment
            generic = builder.addrspacecast(variable, kind.as_pointer())
            return _view(context, builder, array_type, generic, n)

        return array_type(), generate

    return make


@intrinsic
def matrix_u8(typing_context, address, n, m):
    """The bytes at an address as u8[n, m]."""
    array_type = types.Array(types.uint8, 2, "C")

    def generate(context, builder, signature, arguments):
        array = make_array(array_type)(context, builder)
        one = ir.Constant(INT64, 1)
        populate_array(
            array,
            data=builder.inttoptr(arguments[0], ir.IntType(8).as_pointer()),
            shape=cgutils.pack_array(builder, list(arguments[1:]), ty=INT64),
            strides=cgutils.pack_array(builder, [arguments[2], one], ty=INT64),
            itemsize=one,
            meminfo=None,
        )
        return array._getvalue()

    return array_type(types.int64, types.int64, types.int64), generate


@intrinsic
def dynamic_shared(typing_context):
    """The 32-bit address of the block's dynamic shared memory, a multiple of 1024."""

    def generate(context, builder, signature, arguments):
        kind = ir.ArrayType(ir.IntType(8), 0)
        name = "dynamic_shared"
        if name in builder.module.globals:
            variable = builder.module.globals[name]
        else:
            variable = cgutils.add_global_variable(builder.module, kind, name, SHARED)
            variable.linkage = "external"
            variable.align = 1024
        return builder.trunc(builder.ptrtoint(variable, INT64), ir.IntType(32))

    return types.uint32(), generate
