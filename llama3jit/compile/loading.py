"""Files of compiled code to addresses in this process."""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path
from typing import Any

from llama3jit.compile import cache
from llama3jit.compile.targets import Target
from llama3jit.compile.units import Unit, symbols
from llama3jit.errors import CompileError

Addresses = dict[Unit, dict[str, int]]

_LLVM_LOCK = threading.Lock()


def load_shared(path: Path, units: list[Unit]) -> tuple[Any, Addresses]:
    """Units of one shared library: what keeps it loaded, and their addresses.

    Raises CompileError if the system does not load it.
    """
    try:
        library = ctypes.CDLL(str(path))
        return library, {
            unit: {name: _address(library, symbol) for name, symbol in symbols(unit).items()}
            for unit in units
        }
    except (OSError, AttributeError) as error:
        raise CompileError(f"compiled code does not load: {path}: {error}") from error


def _address(library: ctypes.CDLL, symbol: str) -> int:
    address = ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value
    assert address is not None
    return address


def load_objects(files: dict[Unit, Path], target: Target) -> tuple[Any, Addresses]:
    """Units from bare objects, linked in memory by LLVM. Imports llvmlite."""
    import llvmlite.binding as llvm

    with _LLVM_LOCK:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        triple = llvm.get_process_triple()
        machine = llvm.Target.from_triple(triple).create_target_machine(
            cpu=target.cpu, features=target.flags, jit=True
        )
        empty = llvm.parse_assembly("")
        empty.triple = triple
        engine = llvm.create_mcjit_compiler(empty, machine)
        for unit, path in files.items():
            code = cache.unsealed(path)
            if code is None:
                raise CompileError(f"the compiled code of {unit} vanished: {path}")
            engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
    return engine, {
        unit: {n: int(engine.get_function_address(s)) for n, s in symbols(unit).items()}
        for unit in files
    }
