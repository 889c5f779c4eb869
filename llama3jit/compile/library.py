"""Compiled units as addresses in this process. Loading needs llvmlite; numba only where something
must be built, and then in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from llama3jit.compile import cache
from llama3jit.compile.targets import Target, host_target
from llama3jit.compile.units import Unit, symbols
from llama3jit.errors import CompileError

# Called with how many units are built, how many there are to build, and the name of the last.
Progress = Callable[[int, int, str], None]

_LLVM_LOCK = threading.Lock()


class Library:
    """Loaded units. The code stays in memory as long as this object."""

    def __init__(self, units: Sequence[Unit], progress: Progress | None = None) -> None:
        """Load the units, building first what the cache lacks.

        Raises CompileError with the compiler's own words when a unit does not build.
        """
        target = host_target()
        objects = {unit: cache.read(cache.path_of(unit, target)) for unit in dict.fromkeys(units)}
        missing = [unit for unit, code in objects.items() if code is None]
        if missing:
            build(missing, target, progress)
            for unit in missing:
                objects[unit] = cache.read(cache.path_of(unit, target))
        self.built = len(missing)
        self._engine = _engine(target, objects)
        self._addresses = {
            unit: {
                name: int(self._engine.get_function_address(symbol))
                for name, symbol in symbols(unit).items()
            }
            for unit in objects
        }

    def address(self, unit: Unit, name: str) -> int:
        """The address of one function of a unit: "entry" and "count" of an op, or an export."""
        return self._addresses[unit][name]


def _engine(target: Target, objects: dict[Unit, bytes | None]) -> Any:
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
        for unit, code in objects.items():
            if code is None:
                raise CompileError(f"the compiled code of {unit} vanished from {cache.folder()}")
            engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
    return engine


def build(units: Sequence[Unit], target: Target, progress: Progress | None = None) -> None:
    """Compile units into the cache, in as many processes as help."""
    lanes = min(len(units), len(_usable_cores()), 8)
    processes = [_start(units[lane::lanes], target) for lane in range(lanes)]
    done, failed, lock = 0, [], threading.Lock()

    def follow(process: subprocess.Popen[str]) -> None:
        nonlocal done
        assert process.stdout is not None
        for line in process.stdout:
            word, _, name = line.strip().partition(" ")
            with lock:
                if word == "built":
                    done += 1
                    if progress:
                        progress(done, len(units), name)
                elif word == "failed":
                    failed.append(name)

    if progress:
        progress(0, len(units), "")
    threads = [threading.Thread(target=follow, args=(p,), daemon=True) for p in processes]
    complaints = [threading.Thread(target=_keep, args=(p,), daemon=True) for p in processes]
    try:
        for thread in (*threads, *complaints):
            thread.start()
        for thread in (*threads, *complaints):
            thread.join()
        for process in processes:
            process.wait()
    finally:
        for process in processes:
            process.kill()
            process.wait()
        for thread in (*threads, *complaints):
            if thread.ident:
                thread.join()
        for process in processes:
            for pipe in (process.stdout, process.stderr):
                if pipe:
                    pipe.close()
    if failed or done < len(units):
        words = "\n".join(getattr(process, "complaint", "") for process in processes).strip()
        names = ", ".join(failed) or "a builder process died"
        raise CompileError(f"these kernels do not compile: {names}\n{words}")


def _keep(process: subprocess.Popen[str]) -> None:
    assert process.stderr is not None
    process.complaint = process.stderr.read()  # type: ignore[attr-defined]


def _start(units: Sequence[Unit], target: Target) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "NUMBA_CPU_NAME": target.cpu,
        "NUMBA_CPU_FEATURES": target.flags,
        "PYTHONPATH": os.pathsep.join(path for path in (*_roots(), *sys.path) if path),
    }
    for name in ("NUMBA_DISABLE_JIT", "NUMBA_BOUNDSCHECK", "NUMBA_OPT", "NUMBA_DEBUGINFO"):
        environment.pop(name, None)
    jobs = [f"{unit}={cache.path_of(unit, target)}" for unit in units]
    return subprocess.Popen(
        [sys.executable, "-m", "llama3jit.compile.builder", *jobs],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _roots() -> list[str]:
    """The folder that holds both the package and the kernels."""
    return [str(Path(__file__).parents[2])]


def _usable_cores() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))
