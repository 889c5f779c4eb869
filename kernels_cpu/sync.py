"""Atomics, a spin barrier and parking, on 64-bit words by address."""

import platform
import sys

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

INT64 = ir.IntType(64)
X86 = platform.machine().lower() in ("x86_64", "amd64")

# The instruction that tells a core that it spins; arm64's hint 1 is "yield".
PAUSE = (
    ("llvm.x86.sse2.pause", []) if X86 else ("llvm.aarch64.hint", [ir.Constant(ir.IntType(32), 1)])
)

# Waiting: this many pauses, then the core is offered to others; after so many offers, park.
PAUSES = 60
OFFERS_BEFORE_PARKING = 400


def _pointer(builder, address):
    return builder.inttoptr(address, INT64.as_pointer())


@intrinsic
def atomic_load(typing_context, address):
    def generate(context, builder, signature, arguments):
        return builder.load_atomic(_pointer(builder, arguments[0]), "seq_cst", 8)

    return types.int64(types.int64), generate


@intrinsic
def atomic_store(typing_context, address, value):
    def generate(context, builder, signature, arguments):
        builder.store_atomic(arguments[1], _pointer(builder, arguments[0]), "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def atomic_add(typing_context, address, value):
    """Add, and return what was there before."""

    def generate(context, builder, signature, arguments):
        pointer = _pointer(builder, arguments[0])
        return builder.atomic_rmw("add", pointer, arguments[1], "seq_cst")

    return types.int64(types.int64, types.int64), generate


@intrinsic
def pause(typing_context):
    """Tell the core that this is a spin loop."""

    def generate(context, builder, signature, arguments):
        name, operands = PAUSE
        kind = ir.FunctionType(ir.VoidType(), [operand.type for operand in operands])
        builder.call(builder.module.declare_intrinsic(name, (), kind), operands)
        return context.get_dummy_value()

    return types.void(), generate


sched_yield = types.ExternalFunction("sched_yield", types.int32())
usleep = types.ExternalFunction("usleep", types.int32(types.int32))
syscall = types.ExternalFunction("syscall", types.int64(*[types.int64] * 7))

FUTEX = 202 if X86 else 98  # the system call's number on x86-64 and on arm64
FUTEX_WAIT_PRIVATE = 128
FUTEX_WAKE_PRIVATE = 129
EVERYBODY = 2**31 - 1

if sys.platform == "linux":

    @njit
    def park(address, seen):
        """Sleep while the word at `address` is `seen` (its low half is compared)."""
        syscall(FUTEX, address, FUTEX_WAIT_PRIVATE, seen, 0, 0, 0)

    @njit
    def unpark(address):
        """Wake all that sleep on `address`."""
        syscall(FUTEX, address, FUTEX_WAKE_PRIVATE, EVERYBODY, 0, 0, 0)

else:

    @njit
    def park(address, seen):
        usleep(200)

    @njit
    def unpark(address):
        pass


@njit
def wait_while(address, seen):
    """Spin until the word at `address` is not `seen`."""
    n = 0
    while atomic_load(address) == seen:
        pause()
        n += 1
        if n > PAUSES:
            sched_yield()
            n = 0


@njit
def wait_or_park(address, seen, parked):
    """As `wait_while`, but sleep after a while; `parked` is the word that counts the sleepers."""
    for _ in range(OFFERS_BEFORE_PARKING):
        for _ in range(PAUSES):
            if atomic_load(address) != seen:
                return
            pause()
        sched_yield()
    while atomic_load(address) == seen:
        atomic_add(parked, 1)
        park(address, seen)
        atomic_add(parked, -1)
