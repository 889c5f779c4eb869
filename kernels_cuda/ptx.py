"""PTX instructions as numba intrinsics, on plain addresses (PTX ISA 8.8).

A register is `u32`; one of them may hold four int8, two f16, or a float's bits. Instructions that
read or write memory which another thread may touch are volatile, so that they stay in order with
barriers; loads of weights are volatile too, so that they stay ahead of `grid_wait`.
"""

from llvmlite import ir
from numba.cuda import cgutils, types
from numba.cuda.extending import intrinsic

from kernels_cuda import CAPABILITY

LETTERS = {
    types.uint32: "r",
    types.int64: "l",
    types.float32: "f",
    types.float64: "d",
    types.uint16: "h",
}
LLVM = {
    types.uint32: ir.IntType(32),
    types.int64: ir.IntType(64),
    types.float32: ir.FloatType(),
    types.float64: ir.DoubleType(),
    types.uint16: ir.IntType(16),
}
u32, i64, f32, u16 = types.uint32, types.int64, types.float32, types.uint16


def result_type(results):
    """numba's type of no result, one, or several of a kind."""
    if not results:
        return types.void
    return results[0] if len(results) == 1 else types.UniTuple(results[0], len(results))


def call_asm(builder, results, operands, text, constraints, volatile):
    """Call inline PTX on LLVM values; a list of LLVM values."""
    kinds = [LLVM[kind] for kind in results]
    kind = kinds[0] if len(kinds) == 1 else ir.LiteralStructType(kinds) if kinds else ir.VoidType()
    function = ir.FunctionType(kind, [value.type for value in operands])
    value = builder.call(
        ir.InlineAsm(function, text, constraints, side_effect=volatile), list(operands)
    )
    if len(kinds) < 2:
        return [value]
    return [builder.extract_value(value, i) for i in range(len(kinds))]


def instruction(results, arguments, text, volatile=False, memory=False, least=(0, 0)):
    """An intrinsic of one piece of PTX: $0, $1 ... are its results, then its arguments, in order.
    Below the compute capability `least` it is nothing."""
    letters = [f"={LETTERS[kind]}" for kind in results] + [LETTERS[kind] for kind in arguments]
    constraints = ",".join([*letters, *(["~{memory}"] if memory else [])])
    result = result_type(results)

    def generate(context, builder, signature, values):
        if CAPABILITY[0] < least:
            return context.get_dummy_value()
        out = call_asm(builder, results, values, text, constraints, volatile or memory)
        if not results:
            return context.get_dummy_value()
        return out[0] if len(results) == 1 else cgutils.pack_array(builder, out)

    names = ", ".join(f"a{i}" for i in range(len(arguments)))
    space = {"signature": result(*arguments), "generate": generate}
    exec(f"def apply(typing_context, {names}):\n    return signature, generate\n", space)
    return intrinsic(space["apply"])


def quad(text):
    return text.replace("{4}", "{$0, $1, $2, $3}")


# Loads and stores by address.
stream_16 = instruction(
    [u32] * 4, [i64], quad("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {4}, [$4];"), volatile=True
)
load_16 = instruction([u32] * 4, [i64], quad("ld.global.v4.u32 {4}, [$4];"), memory=True)
load_8 = instruction([u32] * 2, [i64], "ld.global.v2.u32 {$0, $1}, [$2];", memory=True)
load_4 = instruction([u32], [i64], "ld.global.u32 $0, [$1];", memory=True)
load_2 = instruction([u16], [i64], "ld.global.u16 $0, [$1];", memory=True)
load_1 = instruction([u32], [i64], "ld.global.u8 $0, [$1];", memory=True)
load_i32 = instruction([i64], [i64], "ld.global.s32 $0, [$1];", memory=True)
load_f32 = instruction([f32], [i64], "ld.global.f32 $0, [$1];", memory=True)
load_f64 = instruction([types.float64], [i64], "ld.global.f64 $0, [$1];", memory=True)
load_2_f32 = instruction([f32] * 2, [i64], "ld.global.v2.f32 {$0, $1}, [$2];", memory=True)
load_4_f32 = instruction([f32] * 4, [i64], quad("ld.global.v4.f32 {4}, [$4];"), memory=True)
store_16 = instruction(
    [], [i64, u32, u32, u32, u32], "st.global.v4.u32 [$0], {$1, $2, $3, $4};", memory=True
)
store_8 = instruction([], [i64, u32, u32], "st.global.v2.u32 [$0], {$1, $2};", memory=True)
store_4 = instruction([], [i64, u32], "st.global.u32 [$0], $1;", memory=True)
store_2 = instruction([], [i64, u16], "st.global.u16 [$0], $1;", memory=True)
store_1 = instruction([], [i64, u32], "st.global.u8 [$0], $1;", memory=True)
store_f32 = instruction([], [i64, f32], "st.global.f32 [$0], $1;", memory=True)
store_2_f32 = instruction([], [i64, f32, f32], "st.global.v2.f32 [$0], {$1, $2};", memory=True)
store_4_f32 = instruction(
    [], [i64, f32, f32, f32, f32], "st.global.v4.f32 [$0], {$1, $2, $3, $4};", memory=True
)

# Numbers and their bits.
as_f32 = instruction([f32], [u32], "mov.b32 $0, $1;")
as_u32 = instruction([u32], [f32], "mov.b32 $0, $1;")
low_half = instruction([f32], [u32], "{ .reg .b16 l, h; mov.b32 {l, h}, $1; cvt.f32.f16 $0, l; }")
high_half = instruction([f32], [u32], "{ .reg .b16 l, h; mov.b32 {l, h}, $1; cvt.f32.f16 $0, h; }")
half_to_f32 = instruction([f32], [u16], "cvt.f32.f16 $0, $1;")
f32_to_half = instruction([u16], [f32], "cvt.rn.f16.f32 $0, $1;")
# The first is the low half.
two_halves = instruction([u32], [f32, f32], "cvt.rn.f16x2.f32 $0, $2, $1;")
two_bfloats = instruction([u32], [f32, f32], "cvt.rn.bf16x2.f32 $0, $2, $1;")
fma_halves = instruction([u32], [u32, u32, u32], "fma.rn.f16x2 $0, $1, $2, $3;")
add_halves = instruction([u32], [u32, u32], "add.rn.f16x2 $0, $1, $2;")
mul_halves = instruction([u32], [u32, u32], "mul.rn.f16x2 $0, $1, $2;")
rint_f32 = instruction([f32], [f32], "cvt.rni.f32.f32 $0, $1;")
rint_i32 = instruction([u32], [f32], "cvt.rni.s32.f32 $0, $1;")
i32_to_f32 = instruction([f32], [u32], "cvt.rn.f32.s32 $0, $1;")
exp2 = instruction([f32], [f32], "ex2.approx.ftz.f32 $0, $1;")
reciprocal = instruction([f32], [f32], "rcp.approx.ftz.f32 $0, $1;")
rsqrt = instruction([f32], [f32], "rsqrt.approx.f32 $0, $1;")
max_f32 = instruction([f32], [f32, f32], "max.f32 $0, $1, $2;")
# Bytes of two registers, 0 to 3 of the first and 4 to 7 of the second, by the nibbles of the third.
bytes_of = instruction([u32], [u32, u32, u32], "prmt.b32 $0, $1, $2, $3;")
lane_id = instruction([u32], [], "mov.u32 $0, %laneid;")
signed_byte_to_f32 = {
    i: instruction(
        [f32], [u32], f"{{ .reg .s32 t; bfe.s32 t, $1, {8 * i}, 8; cvt.rn.f32.s32 $0, t; }}"
    )
    for i in range(4)
}
dp4a = instruction([u32], [u32, u32, u32], "dp4a.s32.s32 $0, $1, $2, $3;")
# The byte becomes the lowest one of 2^23, which then is taken off.
byte_to_f32 = {
    i: instruction(
        [f32],
        [u32],
        f"{{ .reg .b32 t; prmt.b32 t, $1, 0x4B000000, 0x744{i}; sub.rn.f32 $0, t, 0f4B000000; }}",
    )
    for i in range(4)
}
# The same for a byte whose number, 0 to 3, is not known before.
any_byte_to_f32 = instruction(
    [f32],
    [u32, u32],
    "{ .reg .b32 t, s; add.u32 s, $2, 0x7440; prmt.b32 t, $1, 0x4B000000, s; "
    "sub.rn.f32 $0, t, 0f4B000000; }",
)
# And for eight bits from any one on, signed.
any_signed_byte_to_f32 = instruction(
    [f32], [u32, u32], "{ .reg .s32 t; bfe.s32 t, $1, $2, 8; cvt.rn.f32.s32 $0, t; }"
)


# Other threads of the warp.
shuffle_xor = instruction(
    [f32], [f32, u32], "shfl.sync.bfly.b32 $0, $1, $2, 31, 0xffffffff;", volatile=True
)
shuffle_xor_u32 = instruction(
    [u32], [u32, u32], "shfl.sync.bfly.b32 $0, $1, $2, 31, 0xffffffff;", volatile=True
)

# Programmatic dependent launch: until `grid_wait` a kernel may run beside the ones before it, and
# may touch only what no kernel writes. Every kernel has to wait, else the next one could overtake.
grid_wait = instruction([], [], "griddepcontrol.wait;", memory=True, least=(9, 0))
grid_go = instruction([], [], "griddepcontrol.launch_dependents;", volatile=True, least=(9, 0))

# Matrix products of a warp (PTX ISA, "Matrix fragments for mma.m16n8k16" and "k32"): rows lane / 4
# and 8 more of a, columns lane / 4 of b, and of the result rows lane / 4 and 8 more, columns
# 2 (lane % 4) and 1 more.
MMA = {
    "f16": "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
    "bf16": "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
}


def _mma_float(name):
    results, fragment = [f32] * 4, types.UniTuple(f32, 4)
    text = (
        f"{MMA[name]} {{$0, $1, $2, $3}}, {{$4, $5, $6, $7}}, {{$8, $9}}, {{$10, $11, $12, $13}};"
    )

    @intrinsic
    def apply(typing_context, sums, a0, a1, a2, a3, b0, b1):
        def generate(context, builder, signature, values):
            before = [builder.extract_value(values[0], i) for i in range(4)]
            constraints = "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f"
            out = call_asm(builder, results, [*values[1:], *before], text, constraints, False)
            return cgutils.pack_array(builder, out)

        return fragment(fragment, *[u32] * 6), generate

    return apply


# sums + a b, for a of 16 x 16 and b of 16 x 8.
mma_f16 = _mma_float("f16")
mma_bf16 = _mma_float("bf16")

# A sum of up to 2^22 in magnitude on top of these bits is a float with 1.5 * 2^23 added to it.
_SHIFTED = "0x4B400000"
_UNSHIFT = " ".join(f"sub.rn.f32 ${i}, d{i}, 0f4B400000;" for i in range(4))
# a b for int8, as floats: a of 16 x 32, b of 32 x 8.
mma_int8 = instruction(
    [f32] * 4,
    [u32] * 6,
    "{ .reg .b32 m, d0, d1, d2, d3; mov.b32 m, %s; "
    "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {d0, d1, d2, d3}, {$4, $5, $6, $7}, "
    "{$8, $9}, {m, m, m, m}; %s }" % (_SHIFTED, _UNSHIFT),
)
# Of the same the first column of each lane's two, rows lane / 4 and 8 more, with 1.5 * 2^23 on top.
mma_int8_shifted = instruction(
    [f32] * 2,
    [u32] * 6,
    "{ .reg .b32 m, d0, d1, d2, d3; mov.b32 m, %s; "
    "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {d0, d1, d2, d3}, {$2, $3, $4, $5}, "
    "{$6, $7}, {m, m, m, m}; mov.b32 $0, d0; mov.b32 $1, d2; }" % _SHIFTED,
)

# Shared memory, by its 32-bit addresses.
shared_16 = instruction([u32] * 4, [u32], quad("ld.shared.v4.u32 {4}, [$4];"), memory=True)
shared_8 = instruction([u32] * 2, [u32], "ld.shared.v2.u32 {$0, $1}, [$2];", memory=True)
shared_f32 = instruction([f32], [u32], "ld.shared.f32 $0, [$1];", memory=True)
shared_4_f32 = instruction([f32] * 4, [u32], quad("ld.shared.v4.f32 {4}, [$4];"), memory=True)
shared_2_f32 = instruction([f32] * 2, [u32], "ld.shared.v2.f32 {$0, $1}, [$2];", memory=True)
put_16 = instruction(
    [], [u32, u32, u32, u32, u32], "st.shared.v4.u32 [$0], {$1, $2, $3, $4};", memory=True
)
put_4 = instruction([], [u32, u32], "st.shared.u32 [$0], $1;", memory=True)
put_f32 = instruction([], [u32, f32], "st.shared.f32 [$0], $1;", memory=True)

# Barriers in shared memory that copies arrive at (sm_90): a phase is over when `expect` has been
# called and as many bytes have come; `await_phase` waits for the end of a phase of that parity.
barrier_init = instruction(
    [], [u32, u32], "mbarrier.init.shared::cta.b64 [$0], $1;", memory=True, least=(9, 0)
)
barriers_visible = instruction(
    [],
    [],
    "fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;",
    memory=True,
    least=(9, 0),
)
expect = instruction(
    [],
    [u32, u32],
    "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;",
    memory=True,
    least=(9, 0),
)
await_phase = instruction(
    [],
    [u32, u32],
    "{ .reg .pred p; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [$0], $1; "
    "@p bra DONE; bra AGAIN; DONE: }",
    memory=True,
    least=(9, 0),
)
# To shared memory at $0 from $1, $2 bytes (a multiple of 16), telling the barrier at $3.
copy_bulk = instruction(
    [],
    [u32, i64, u32, u32],
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1], $2, [$3];",
    memory=True,
    least=(9, 0),
)
async_sees_shared = instruction([], [], "fence.proxy.async.shared::cta;", memory=True, least=(9, 0))

# Quotient and remainder of numbers from 0 to 2^32 - 1: a fraction of what 64-bit ones cost.
quotient = instruction(
    [i64],
    [i64, i64],
    "{ .reg .u32 a, b; cvt.u32.u64 a, $1; cvt.u32.u64 b, $2; div.u32 a, a, b; cvt.u64.u32 $0, a; }",
)
remainder = instruction(
    [i64],
    [i64, i64],
    "{ .reg .u32 a, b; cvt.u32.u64 a, $1; cvt.u32.u64 b, $2; rem.u32 a, a, b; cvt.u64.u32 $0, a; }",
)

# A barrier that threads arrive at, and the same for one thread of a warp.
arrive = instruction(
    [], [u32], "mbarrier.arrive.shared::cta.b64 _, [$0];", memory=True, least=(9, 0)
)

# 16 bytes to shared memory at $0 from $1 in the background, of which the first $2 are read and the
# others zero (sm_80).
copy_16 = instruction(
    [], [u32, i64, u32], "cp.async.cg.shared.global [$0], [$1], 16, $2;", memory=True
)
# The same for 4 bytes.
copy_4 = instruction(
    [], [u32, i64, u32], "cp.async.ca.shared.global [$0], [$1], 4, $2;", memory=True
)
copies_go = instruction([], [], "cp.async.commit_group;", memory=True)
copies_come = {n: instruction([], [], f"cp.async.wait_group {n};", memory=True) for n in range(3)}
# Four matrices of 8 rows of 16 bytes, of which lanes 0-7, 8-15, ... give the addresses of the rows:
# lane l gets two halves of row l / 4, or with `turned` of rows 2 (l % 4) and 1 more.
matrices = instruction(
    [u32] * 4, [u32], quad("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {4}, [$4];"), memory=True
)
matrices_turned = instruction(
    [u32] * 4,
    [u32],
    quad("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {4}, [$4];"),
    memory=True,
)
