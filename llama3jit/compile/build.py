"""Compiles units, in processes of their own: numba reads its target from the environment once."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from llama3jit.compile.sources import source_key
from llama3jit.compile.targets import AnyTarget
from llama3jit.compile.units import Unit
from llama3jit.errors import CompileError

# Called with how many units are built, how many there are to build, and the name of the last.
Progress = Callable[[int, int, str], None]


def build(
    files: dict[Unit, Path], target: AnyTarget, progress: Progress | None = None, why: str = ""
) -> None:
    """Compile units into files without their suffixes, in as many processes as help. `why` is told
    to `progress` at the start, in place of a name.

    Raises CompileError with the compiler's own words when one does not compile, and what
    `progress` raises.
    """
    units = list(files)
    lanes = min(len(units), _usable_cores(), 8)
    watch = _Watch(len(units), progress, why)
    processes = [_start({u: files[u] for u in units[lane::lanes]}, target) for lane in range(lanes)]
    threads = [threading.Thread(target=watch.follow, args=(p,), daemon=True) for p in processes]
    threads += [threading.Thread(target=watch.listen, args=(p,), daemon=True) for p in processes]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for process in processes:
            process.wait()
    finally:
        for process in processes:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
    if watch.error is not None:
        raise watch.error
    if watch.failed or watch.done < len(units):
        names = ", ".join(watch.failed) or "a builder process died"
        words = "\n".join(watch.complaints).strip()
        raise CompileError(f"these kernels do not compile: {names}\n{words}")


class _Watch:
    """What the builder processes say."""

    def __init__(self, total: int, progress: Progress | None, why: str) -> None:
        self.done = 0
        self.failed: list[str] = []
        self.complaints: list[str] = []
        self.error: BaseException | None = None  # what `progress` raised
        self._total = total
        self._progress = progress
        self._lock = threading.Lock()
        if progress:
            progress(0, total, why)

    def follow(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            word, _, name = line.strip().partition(" ")
            with self._lock:
                if word == "built":
                    self.done += 1
                    self._report(process, name)
                elif word == "failed":
                    self.failed.append(name)

    def _report(self, process: subprocess.Popen[str], name: str) -> None:
        if self._progress is None:
            return
        try:
            if self.error is None:
                self._progress(self.done, self._total, name)
        except BaseException as error:
            self.error = error
        if self.error is not None:
            process.kill()  # nobody wants the rest

    def listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        words = process.stderr.read()
        with self._lock:
            self.complaints.append(words)


def _start(files: dict[Unit, Path], target: AnyTarget) -> subprocess.Popen[str]:
    root = str(Path(__file__).parents[2])
    environment = {
        # None of numba's settings: they change what it makes, and no key knows of them.
        **{name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")},
        **target.environment,
        "PYTHONPATH": os.pathsep.join([root, *(path for path in sys.path if path)]),
    }
    jobs = [f"{unit}={source_key(unit, target)}={path}" for unit, path in files.items()]
    # -P: the folder that one happens to be in must not lend its modules.
    return subprocess.Popen(
        [sys.executable, "-P", "-m", *target.builder, *jobs],
        env=environment,
        stdin=subprocess.PIPE,  # nothing is written: its end tells the builder that we are gone
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
