"""Builds cubins and PTX, with no GPU. Run as a process of its own:

    python -m llama3jit.compile.cuda.builder TARGET MODULE:OP:VARIANT=KEY=FILE ...

KEY is as for llama3jit.compile.builder. FILE gets the suffix ".cubin" or ".ptx". Files are written
whole and renamed into place; one line on stdout says that one is there. The process ends when its
standard input does.
"""

from __future__ import annotations

import re
import sys
import warnings
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kernels_cuda
from llama3jit.compile.cache import suffixes, write_sealed
from llama3jit.compile.cuda.entry import argument_kinds, portable_kernel
from llama3jit.compile.cuda.targets import TARGETS, CudaTarget
from llama3jit.compile.cuda.units import Chip, is_tuned, signature_of, symbol, tell_kernels
from llama3jit.compile.jobs import do_jobs
from llama3jit.compile.units import Unit
from llama3jit.errors import CompileError

ENTRY = re.compile(r"\.entry\s+([\w$]+)")


@dataclass(frozen=True, slots=True)
class Built:
    """A unit's code, and what the assembler said of it ("" for PTX)."""

    code: bytes
    log: str


def kernel_of(unit: Unit) -> Any:
    """The kernel as a plain function."""
    if is_tuned(unit):
        return kernels_cuda.kernel(unit.op, unit.variant)
    return portable_kernel(getattr(import_module(unit.module), unit.op), unit.variant)


def numba_signature(unit: Unit) -> Any:
    """numba's signature of a unit's kernel."""
    from numba.cuda import types

    kinds = {"i64": types.int64, "f32": types.float32}
    return types.void(*(kinds[kind] for kind in argument_kinds(signature_of(unit.op))))


def build(unit: Unit, target: CudaTarget) -> Built:
    """Compile a unit. Raises CompileError where the assembler refuses it."""
    ptx = compile_ptx(unit, target)
    return Built(ptx.encode(), "") if target.is_ptx else assemble(ptx, target)


def compile_ptx(unit: Unit, target: CudaTarget) -> str:
    """The unit's kernel as PTX under its own symbol."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from numba import cuda
        from numba.cuda import api, dispatcher

        # Functions that kernels call ask the current device for its capability.
        device = SimpleNamespace(compute_capability=target.capability, id=0)
        for asking in (api, dispatcher):
            asking.get_current_device = lambda: device
        tell_kernels(Chip(target.capability, 1))
        capability = (*target.capability, "a") if target.is_specific else target.capability
        kernel = kernel_of(unit)
        ptx, _ = cuda.compile(
            kernel,
            numba_signature(unit),
            cc=capability,
            device=False,
            abi="numba",
            output="ptx",
        )
    found = ENTRY.findall(ptx)
    if len(found) != 1:
        raise CompileError(f"{unit} compiles to {len(found)} kernels; expected 1")
    return bounded(str(ptx).replace(found[0], symbol(unit)), getattr(kernel, "threads", 0))


def bounded(ptx: str, threads: int) -> str:
    """PTX with the threads of a block said, if they are not 0: the assembler then takes no more
    registers than so many threads can have."""
    if not threads:
        return ptx
    end = ptx.index(")", ptx.index(".entry")) + 1
    return f"{ptx[:end]} .maxntid {threads}, 1, 1{ptx[end:]}"


def assemble(ptx: str, target: CudaTarget) -> Built:
    """PTX to a cubin, by nvJitLink."""
    from cuda.core import Linker, LinkerOptions, ObjectCode

    options = LinkerOptions(arch=target.name, verbose=True, ptxas_options=["-v"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        linker = Linker(ObjectCode.from_ptx(ptx.encode()), options=options)
        try:
            code = bytes(linker.link("cubin").code)
        except Exception as error:
            raise CompileError(f"{target.name}: {error}\n{linker.get_error_log()}") from error
        return Built(code, linker.get_info_log())


def main(arguments: list[str]) -> int:
    """Build what is asked for; the exit status says how many units failed."""
    target = next(target for target in TARGETS if target.name == arguments[0])

    def code_of(unit: Unit) -> bytes:
        try:
            return build(unit, target).code
        except ImportError as error:
            raise CompileError(f"{error} (pip install 'llama3jit[cuda-jit]')") from error

    def store(path: str, code: bytes) -> None:
        write_sealed(Path(path + suffixes(target)[0]), code)

    return do_jobs(arguments[1:], target, code_of, store)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
