"""Array views on device memory, by address; they own nothing."""

from functools import cache

from llvmlite import ir
from numba.cuda import cgutils, types
from numba.cuda.extending import intrinsic
from numba.cuda.np.arrayobj import make_array, populate_array

INT64 = ir.IntType(64)

DTYPES = {
    "uint8": types.uint8,
    "int8": types.int8,
    "uint16": types.uint16,
    "int32": types.int32,
    "int64": types.int64,
    "float32": types.float32,
    "float64": types.float64,
}


@cache
def viewer(dtype, ndim):
    """An intrinsic `view(address, *shape)`: a C-contiguous array of NumPy dtype name `dtype`."""
    element = DTYPES[dtype]
    array_type = types.Array(element, ndim, "C", aligned=True)

    def build(context, builder, address, shape):
        itemsize = context.get_abi_sizeof(context.get_data_type(element))
        array = make_array(array_type)(context, builder)
        stride = ir.Constant(INT64, itemsize)
        strides = []
        for extent in reversed(shape):
            strides.insert(0, stride)
            stride = builder.mul(stride, extent)
        populate_array(
            array,
            data=builder.inttoptr(address, context.get_data_type(element).as_pointer()),
            shape=cgutils.pack_array(builder, shape, ty=INT64),
            strides=cgutils.pack_array(builder, strides, ty=INT64),
            itemsize=ir.Constant(INT64, itemsize),
            meminfo=None,
        )
        return array._getvalue()

    names = ", ".join(f"n{i}" for i in range(ndim))
    source = (
        f"def view(typing_context, address, {names}):\n"
        f"    def generate(context, builder, signature, arguments):\n"
        f"        return build(context, builder, arguments[0], list(arguments[1:]))\n"
        f"    return array_type(*[int64] * {ndim + 1}), generate\n"
    )
    space = {"array_type": array_type, "build": build, "int64": types.int64}
    exec(source, space)
    return intrinsic(space["view"])
