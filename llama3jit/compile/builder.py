"""Builds native objects. Run as a process of its own, since numba reads its target from the
environment once: NUMBA_CPU_NAME and NUMBA_CPU_FEATURES must both be set.

    python -m llama3jit.compile.builder MODULE:OP:VARIANT=KEY=FILE ...

KEY is `sources.source_key` of the unit: what is built from other sources, because one was edited
meanwhile, is not stored. FILE gets the suffix ".so" where there is a linker, else ".o"; a FILE that
ends in ".o" already is a bare object. Files are written whole and renamed into place; one line on
stdout says that one is there. The process ends when its standard input does, and so with the one
that started it.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from llama3jit.compile.cache import write_sealed
from llama3jit.compile.jobs import do_jobs
from llama3jit.compile.link import link
from llama3jit.compile.targets import Target
from llama3jit.compile.units import Unit, exports, symbols
from llama3jit.errors import CompileError

# The C library's, which every process has; nothing of numba's or Python's.
ALLOWED = {"cos", "exp", "expf", "sched_yield", "sin", "sqrtf", "syscall", "usleep"}


def exported(unit: Unit) -> dict[str, tuple[Any, int]]:
    """Symbol -> dispatcher and how many int64 it takes."""
    from llama3jit.compile.entry import compiled_entry
    from llama3jit.ops.op import Op

    module = import_module(unit.module)
    if unit.op:
        op = getattr(module, unit.op)
        assert isinstance(op, Op)
        entry, count = compiled_entry(op, unit.variant)
        functions = {"entry": entry, "count": count}
    else:
        functions = module.EXPORTS
    names = symbols(unit)
    return {names[name]: (functions[name], n) for name, n in exports(unit).items()}


def build(unit: Unit) -> bytes:
    """The unit as a relocatable object for NUMBA_CPU_NAME with NUMBA_CPU_FEATURES."""
    from llvmlite import ir
    from numba.core import compiler, types
    from numba.core.codegen import AOTCPUCodegen
    from numba.core.compiler_lock import global_compiler_lock
    from numba.core.registry import cpu_target

    features = os.environ["NUMBA_CPU_FEATURES"]
    cpu = os.environ["NUMBA_CPU_NAME"]

    class Codegen(AOTCPUCodegen):  # type: ignore[misc]
        """numba's own leaves the features to LLVM's table of processors."""

        def _customize_tm_features(self) -> str:
            return features

    typing, target = cpu_target.typing_context, cpu_target.target_context
    typing.refresh()
    target.refresh()
    context = target.with_aot_codegen("llama3jit", cpu_name=cpu)
    context._internal_codegen = Codegen("llama3jit", cpu)
    context.add_dynamic_addr = _no_address
    with global_compiler_lock:
        library = context.codegen().create_library("llama3jit")
        names = exported(unit)
        for symbol, (dispatcher, n_arguments) in names.items():
            signature = types.int64(*[types.int64] * n_arguments)
            flags = compiler.Flags()
            options = dict(dispatcher.targetoptions, no_cpython_wrapper=True, no_cfunc_wrapper=True)
            cpu_target.options.parse_as_flags(flags, options)
            flags.no_compile = True
            result = compiler.compile_extra(
                typing,
                context,
                dispatcher.py_func,
                signature.args,
                signature.return_type,
                flags,
                locals={},
                library=library,
            )
            library.add_ir_module(_c_function(context, library, symbol, signature, result, ir))
        library.finalize()
        for function in library.get_defined_functions():
            if function.name not in names:
                function.linkage = "internal"
        # numba keeps a word beside each function, for a Python environment that nothing sets.
        for variable in library._final_module.global_variables:
            if not variable.is_declaration:
                variable.linkage = "internal"
        strangers = sorted(_called(library) - ALLOWED)
        if strangers:
            raise CompileError(f"it calls {', '.join(strangers)}, which will not be there to call")
        emitted: bytes = library.emit_native_object()
    return emitted


def _no_address(builder: Any, address: int, info: str | None = None) -> Any:
    """In place of the address of an object in this process: null for a function that is passed to
    another, which the callee has known since it was typed and never looks at."""
    from llvmlite import ir
    from numba.core.registry import CPUDispatcher

    if info != CPUDispatcher.__name__:
        raise CompileError(f"it needs the address of a {info}, which will not be there")
    return ir.Constant(ir.IntType(8).as_pointer(), None)


def _called(library: Any) -> set[str]:
    """Functions outside the object that it may call."""
    return {
        function.name
        for function in library._final_module.functions
        if function.is_declaration and not function.name.startswith("llvm.")
    }


def _c_function(
    context: Any, library: Any, symbol: str, signature: Any, result: Any, ir: Any
) -> Any:
    """A module with the plain C function `symbol`: numba's status if it is not zero, else the
    result."""
    module = library.create_ir_module(f"export_{symbol}")
    callee_type = context.call_conv.get_function_type(result.fndesc.restype, result.fndesc.argtypes)
    callee = ir.Function(module, callee_type, result.fndesc.llvm_func_name)
    int64 = ir.IntType(64)
    function = ir.Function(module, ir.FunctionType(int64, [int64] * len(signature.args)), symbol)
    builder = ir.IRBuilder(function.append_basic_block())
    status, value = context.call_conv.call_function(
        builder, callee, result.fndesc.restype, result.fndesc.argtypes, function.args
    )
    failed = builder.sext(status.code, int64)
    builder.ret(builder.select(status.is_error, failed, value))
    return module


def main(arguments: list[str]) -> int:
    """Build what is asked for; the exit status says how many units failed."""
    cpu, features = os.environ["NUMBA_CPU_NAME"], os.environ["NUMBA_CPU_FEATURES"]
    return do_jobs(arguments, Target("", cpu, (), (features,)), build, store)


def store(path: str, code: bytes) -> None:
    """Write an object, or link it first if it is to be a shared library and that works."""
    if not path.endswith(".o"):
        try:
            code, path = link([code]), f"{path}.so"
        except CompileError:
            path = f"{path}.o"
    write_sealed(Path(path), code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
