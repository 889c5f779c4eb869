"""Vectors as numba types, and how their operations are written: as functions that build LLVM
instructions.

Every vector holds 16 lanes of 32 bits, or the 64 bytes of one such: one register where registers
have 512 bits; LLVM splits it where they are narrower.
"""

import operator

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, overload, register_model

LANES = 16
BYTES = 64
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
u8x64 = Vector("u8x64", lanes_of(INT8, BYTES))


class Memory:
    """An array argument of an operation: C-contiguous, seen as one-dimensional."""

    def __init__(self, context, builder, array_type, array):
        self.builder = builder
        self.data = cgutils.create_struct_proxy(array_type)(context, builder, array).data

    def at(self, offset, llvm_type):
        """A pointer to element `offset`, as one to `llvm_type`."""
        return self.builder.bitcast(self.builder.gep(self.data, [offset]), llvm_type.as_pointer())

    def load(self, offset, llvm_type):
        """What lies at element `offset`, at any alignment."""
        value = self.builder.load(self.at(offset, llvm_type))
        value.align = 1
        return value

    def store(self, offset, value):
        self.builder.store(value, self.at(offset, value.type)).align = 1


ARRAY = object()  # a parameter of an operation that is an array of any kind


def operation(result, *parameters):
    """Make an intrinsic of a function (builder, *values) -> value; an ARRAY comes as Memory."""

    def decorate(build):
        def type_of(*given):
            pairs = zip(given, parameters, strict=True)
            return result(*(g if p is ARRAY else p for g, p in pairs))

        def generate(context, builder, signature, arguments):
            values = [
                Memory(context, builder, kind, value) if parameter is ARRAY else value
                for kind, value, parameter in zip(
                    signature.args, arguments, parameters, strict=True
                )
            ]
            value = build(builder, *values)
            return context.get_dummy_value() if value is None else value

        names = ", ".join(f"p{i}" for i in range(len(parameters)))
        source = f"def typed(typing_context, {names}):\n    return type_of({names}), generate\n"
        space = {"type_of": type_of, "generate": generate}
        exec(source, space)
        space["typed"].__name__ = build.__name__
        space["typed"].__doc__ = build.__doc__
        return intrinsic(space["typed"])

    return decorate


def call(builder, name, result, *arguments):
    """A call of an LLVM intrinsic by its full name."""
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def splat(builder, value, n=LANES):
    """The value in every lane."""
    vector = lanes_of(value.type, n)
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, INT32(0))
    zeros = ir.Constant(lanes_of(INT32, n), [0] * n)
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), zeros)


def constant(vector, number):
    """A vector of one number."""
    return ir.Constant(vector, [number] * vector.count)


def part(builder, value, first, n):
    """Lanes first to first + n - 1."""
    places = ir.Constant(lanes_of(INT32, n), list(range(first, first + n)))
    return builder.shuffle_vector(value, ir.Constant(value.type, ir.Undefined), places)


def joined(builder, low, high):
    """Two vectors as one of twice the lanes."""
    places = ir.Constant(lanes_of(INT32, 2 * low.type.count), list(range(2 * low.type.count)))
    return builder.shuffle_vector(low, high, places)


def fold(builder, value, combine):
    """All lanes to one: halves onto each other, again and again."""
    while value.type.count > 1:
        n = value.type.count // 2
        value = combine(builder, part(builder, value, 0, n), part(builder, value, n, n))
    return builder.extract_element(value, INT32(0))


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
