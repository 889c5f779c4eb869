"""Arrays made out of addresses, for either of numba's compilers; they own nothing."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

INT64 = ir.IntType(64)


def viewer(
    dtype: str, ndim: int, *, types: Any, cgutils: Any, arrayobj: Any, intrinsic: Any
) -> Any:
    """An intrinsic `view(address, *shape)`: a C-contiguous array of NumPy dtype name `dtype`. What
    it is made of comes from numba.core or from numba.cuda, which have these modules alike."""
    element = getattr(types, dtype)
    array_type = types.Array(element, ndim, "C", aligned=True)

    def build(context: Any, builder: Any, address: Any, shape: list[Any]) -> Any:
        itemsize = context.get_abi_sizeof(context.get_data_type(element))
        array = arrayobj.make_array(array_type)(context, builder)
        stride = ir.Constant(INT64, itemsize)
        strides: list[Any] = []
        for extent in reversed(shape):
            strides.insert(0, stride)
            stride = builder.mul(stride, extent)
        arrayobj.populate_array(
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
