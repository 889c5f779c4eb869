"""Products of four warps on Hopper (PTX ISA, "Asynchronous warpgroup level matrix instructions"):
64 rows of a in registers by `columns` columns of b in shared memory, sums in registers.

A warp holds 16 rows of a, as for `mma`. Column c of b is row c of a tile of rows of 64 halves, 128
bytes each, swizzled (`tiles`).
"""

from llvmlite import ir
from numba.cuda import cgutils, types
from numba.cuda.extending import intrinsic

from kernels_cuda.ptx import LLVM

f32, u32, u64 = types.float32, types.uint32, types.uint64
FLOAT = LLVM[f32]
# A descriptor's constant part: 1024 bytes from 8 rows to the next, the 128-byte swizzle.
DESCRIPTOR = 1 << 62 | 64 << 32 | 1 << 16


def sums_of(columns):
    return types.UniTuple(f32, columns // 2)


def zeros(columns):
    """The intrinsic for sums of nothing."""
    kind = sums_of(columns)

    @intrinsic
    def make(typing_context):
        def generate(context, builder, signature, values):
            return cgutils.pack_array(builder, [ir.Constant(FLOAT, 0.0)] * kind.count)

        return kind(), generate

    return make


def multiply(columns, halves):
    """The intrinsic `sums, a, address -> sums` + a b over 64 columns of a: `a` has 4 registers for
    each 16 of them, `address` is that of b in shared memory, `halves` f16 or bf16."""
    kind = sums_of(columns)
    n = kind.count
    operands = types.UniTuple(u32, 16)

    @intrinsic
    def apply(typing_context, sums, a, address):
        def generate(context, builder, signature, values):
            before = [builder.extract_value(values[0], i) for i in range(n)]
            rows = [builder.extract_value(values[1], i) for i in range(16)]
            out = ", ".join(f"${i}" for i in range(n))
            text = f"{{ .reg .b64 b, c; cvt.u64.u32 b, ${2 * n + 16}; shr.u64 b, b, 4; "
            text += f"or.b64 b, b, {DESCRIPTOR}; wgmma.fence.sync.aligned; "
            for k in range(4):
                regs = ", ".join(f"${2 * n + 4 * k + i}" for i in range(4))
                text += (
                    f"add.u64 c, b, {2 * k}; wgmma.mma_async.sync.aligned.m64n{columns}k16."
                    f"f32.{halves}.{halves} {{{out}}}, {{{regs}}}, c, 1, 1, 1, 0; "
                )
            text += "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0; }"
            constraints = [*["=f"] * n, *(str(i) for i in range(n)), *["r"] * 17, "~{memory}"]
            kinds = [FLOAT] * n + [LLVM[u32]] * 17
            function = ir.FunctionType(ir.LiteralStructType([FLOAT] * n), kinds)
            asm = ir.InlineAsm(function, text, ",".join(constraints), side_effect=True)
            after = builder.call(asm, [*before, *rows, values[2]])
            return cgutils.pack_array(builder, [builder.extract_value(after, i) for i in range(n)])

        return kind(kind, operands, u32), generate

    return apply


def store(columns):
    """The intrinsic `store(sums, address, stride, left, factor)`: column 8 i + j of a lane's sums,
    times the factor, to `address` + (8 i + j) * stride and, 8 rows further, 32 bytes after it; the
    first `left` of the columns alone."""
    kind = sums_of(columns)
    i64 = ir.IntType(64)

    @intrinsic
    def put(typing_context, sums, address, stride, left, factor, low, high):
        def generate(context, builder, signature, values):
            given, at, step, n, scale, low, high = values
            text = (
                "{ .reg .pred p, q; setp.gt.s64 p, $3, $4; setp.ne.and.b32 q, $5, 0, p; "
                "setp.ne.and.b32 p, $6, 0, p; @q st.global.f32 [$0], $1; "
                "@p st.global.f32 [$0 + 32], $2; }"
            )
            kinds = [i64, FLOAT, FLOAT, i64, i64, LLVM[u32], LLVM[u32]]
            function = ir.FunctionType(ir.VoidType(), kinds)
            asm = ir.InlineAsm(function, text, "l,f,f,l,l,r,r,~{memory}", side_effect=True)
            for i in range(columns // 8):
                for j in range(2):
                    column = ir.Constant(i64, 8 * i + j)
                    place = builder.add(at, builder.mul(step, column))
                    pair = [
                        builder.fmul(builder.extract_value(given, 4 * i + j + 2 * h), scale)
                        for h in range(2)
                    ]
                    builder.call(asm, [place, *pair, n, column, low, high])
            return context.get_dummy_value()

        kinds = (types.int64, types.int64, types.int64, f32, u32, u32)
        return types.void(kind, *kinds), generate

    return put


def _shared(columns, text, constraints, combine):
    """An intrinsic over sums and a place in shared memory where thread t of 128 has every 128th
    float from t on."""
    kind = sums_of(columns)

    @intrinsic
    def apply(typing_context, sums, address):
        def generate(context, builder, signature, values):
            result = ir.VoidType() if combine is None else FLOAT
            out = []
            for i in range(kind.count):
                at = builder.add(values[1], ir.Constant(LLVM[u32], 512 * i))
                value = builder.extract_value(values[0], i)
                given = [at, value] if combine is None else [at]
                function = ir.FunctionType(result, [x.type for x in given])
                asm = ir.InlineAsm(function, text, constraints, side_effect=True)
                found = builder.call(asm, given)
                out.append(value if combine is None else builder.fadd(value, found))
            return cgutils.pack_array(builder, out)

        return kind(kind, u32), generate

    return apply


def keep(columns):
    """The intrinsic that writes sums to shared memory."""
    return _shared(columns, "st.shared.f32 [$0], $1;", "r,f,~{memory}", None)


def with_kept(columns):
    """The intrinsic that adds the sums that `keep` wrote."""
    return _shared(columns, "ld.shared.f32 $0, [$1];", "=f,r,~{memory}", "add")
