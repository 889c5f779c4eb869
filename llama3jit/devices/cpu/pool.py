"""The threads that walk: Python threads that sit inside one compiled loop, asleep when there is
nothing to do. One pool a process for each number of threads, and one pass at a time over all."""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_cpu import control
from llama3jit.compile.library import Library
from llama3jit.compile.units import WALKER, exports
from llama3jit.errors import CancelledError, DeviceError

_pools: dict[int, Pool] = {}
_lock = threading.Lock()
_turn = threading.Lock()  # held by whoever runs a pass


class Pool:
    """`threads` threads, the caller's among them."""

    def __init__(self, threads: int, library: Library) -> None:
        self.threads = threads
        self._library = library  # its code must stay
        self._memory, self._control = _aligned(control.CONTROL_BYTES)
        self._control[control.THREADS // control.WORD] = threads
        self._address = int(self._control.ctypes.data)
        self._run = self._function("run")
        self._stop = self._function("stop")
        self._process = os.getpid()
        for i in range(threads - 1):
            threading.Thread(target=self._serve, name=f"llama3jit-{i + 1}", daemon=True).start()

    def _serve(self) -> None:
        """What a worker does; by `self` it keeps its code and the control block in memory."""
        self._function("serve")(self._address, 0)

    def _function(self, name: str) -> Callable[..., int]:
        int64 = ctypes.c_int64
        kind = ctypes.CFUNCTYPE(int64, *[int64] * exports(WALKER)[name])
        function: Callable[..., int] = kind(self._library.address(WALKER, name))
        return function

    def run(
        self,
        rows: NDArray[np.int64],
        n_rows: int,
        tickets: NDArray[np.int64],
        cancel: NDArray[np.int64],
    ) -> None:
        """One pass over assembled rows; blocks, with the GIL released. `tickets` has a word for
        each row; `cancel` is one word, which any thread may set to end the pass within a few items.

        Raises CancelledError if that was done, DeviceError if an op fails or in a forked child.
        """
        if os.getpid() != self._process:
            raise DeviceError(
                "this process was forked from one that had a model loaded, and threads do not "
                "survive a fork; load the model in the child, or start it with 'spawn'"
            )
        with _turn:
            status = self._run(
                self._address,
                int(rows.ctypes.data),
                n_rows,
                int(tickets.ctypes.data),
                int(cancel.ctypes.data),
            )
        if status == control.CANCELLED:
            raise CancelledError("the forward pass was cancelled")
        if status != 0:
            raise DeviceError(f"a compiled op failed with status {status}")

    def stop(self) -> None:
        """End the threads."""
        if os.getpid() == self._process:
            self._stop(self._address)


def _aligned(size: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """So many bytes as zeroed words that begin on a cache line; the first array owns the memory."""
    memory = np.zeros(size + control.LINE, np.uint8)
    skip = -int(memory.ctypes.data) % control.LINE
    return memory, memory[skip : skip + size].view(np.int64)


def get_pool(threads: int, library: Library) -> Pool:
    """The process's pool of that size, made when first asked for; `library` has the walker."""
    with _lock:
        pool = _pools.get(threads)
        if pool is None:
            pool = _pools[threads] = Pool(threads, library)
        return pool


@atexit.register
def _stop_all() -> None:
    for pool in _pools.values():
        pool.stop()
    _pools.clear()


def _forget() -> None:
    """In a forked child: the threads are gone, and a lock may have been held."""
    global _lock, _turn
    _lock, _turn = threading.Lock(), threading.Lock()
    _pools.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
