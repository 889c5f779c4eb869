"""Tuned GPU kernels as plain Python, a Python thread for each thread of a block: slow, and without
a GPU or a compiler. What the kernels import is replaced: numba's names, and the PTX instructions by
functions that do the same. Products of int8, and what sm_90 alone has, are left out.

Global memory is byte arrays, each at an address of its own; a read or write outside of one is an
IndexError.
"""

from __future__ import annotations

import math
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

import kernels_cuda

f32 = np.float32
SHARED = 1024  # the first address of dynamic shared memory
here = threading.local()  # block, warp, lane, and the indices of a thread


class Warp:
    """32 threads that give each other values."""

    def __init__(self) -> None:
        self.slots: list[Any] = [None] * 32
        self.made: Sequence[Any] = ()
        self.barrier = threading.Barrier(32)


class Block:
    """What the threads of a block share."""

    def __init__(self, n_threads: int, shared: int) -> None:
        self.barrier = threading.Barrier(n_threads)
        self.warps = [Warp() for _ in range(n_threads // 32)]
        self.arrays: dict[int, np.ndarray] = {}
        self.memory = bytearray(b"\xa5" * (SHARED + shared))
        self.lock = threading.Lock()
        self.error: BaseException | None = None

    def fail(self, error: BaseException) -> None:
        with self.lock:
            broken = isinstance(error, threading.BrokenBarrierError)
            if self.error is None or not broken:
                self.error = error
        for barrier in (self.barrier, *(warp.barrier for warp in self.warps)):
            barrier.abort()


def gathered(value: Any) -> list[Any]:
    """The values of all lanes of this thread's warp."""
    warp = here.warp
    warp.slots[here.lane] = value
    warp.barrier.wait()
    found = list(warp.slots)
    warp.barrier.wait()
    return found


def together(value: Any, work: Callable[[list[Any]], Sequence[Any]]) -> Any:
    """What `work` makes, once for the warp, of the values of all lanes: an item for each lane."""
    warp = here.warp
    warp.slots[here.lane] = value
    warp.barrier.wait()
    if here.lane == 0:
        warp.made = work(warp.slots)
    warp.barrier.wait()
    return warp.made[here.lane]


class Memory:
    """Global memory."""

    def __init__(self) -> None:
        self.blocks: dict[int, bytearray] = {}

    def put(self, array: np.ndarray) -> int:
        number = len(self.blocks) + 1
        self.blocks[number] = bytearray(np.ascontiguousarray(array).tobytes())
        return number << 32

    def at(self, address: int, size: int) -> tuple[bytearray, int]:
        address = int(address)
        block, offset = self.blocks[address >> 32], address & 0xFFFFFFFF
        if offset + size > len(block):
            raise IndexError(f"{size} bytes at {offset} of {len(block)}")
        if offset % size:
            raise IndexError(f"{offset} is not a multiple of {size}")
        return block, offset


def word(x: Any) -> int:
    return int(x) & 0xFFFFFFFF


def bits(x: Any) -> int:
    return int(f32(x).view(np.uint32))


def floating(x: Any) -> np.float32:
    return np.uint32(word(x)).view(np.float32)


def half_bits(x: Any) -> int:
    return int(np.float16(f32(x)).view(np.uint16))


def of_half(x: Any) -> np.float32:
    return f32(np.uint16(int(x) & 0xFFFF).view(np.float16))


def loads(memory: Memory) -> dict[str, Callable[..., Any]]:
    """The instructions that read and write global memory."""

    def load(form: str, kind: Callable[[Any], Any]) -> Callable[[int], Any]:
        size, one = struct.calcsize(form), len(form) == 2

        def read(address: int) -> Any:
            found = struct.unpack_from(form, *memory.at(address, size))
            return kind(found[0]) if one else tuple(kind(value) for value in found)

        return read

    def store(form: str, kind: Callable[[Any], Any]) -> Callable[..., None]:
        size = struct.calcsize(form)

        def write(address: int, *values: Any) -> None:
            struct.pack_into(form, *memory.at(address, size), *(kind(value) for value in values))

        return write

    found: dict[str, Callable[..., Any]] = {"load_i32": load("<i", int)}
    for name, form in (("load_1", "<B"), ("load_2", "<H"), ("load_4", "<I")):
        found[name] = load(form, int)
    for name, form in (("load_8", "<II"), ("load_16", "<IIII"), ("stream_16", "<IIII")):
        found[name] = load(form, int)
    for name, form in (("load_f32", "<f"), ("load_2_f32", "<ff"), ("load_4_f32", "<ffff")):
        found[name] = load(form, f32)
        found[name.replace("load", "store")] = store(form, f32)
    found["load_f64"] = load("<d", np.float64)
    found["store_1"] = store("<B", lambda x: int(x) & 0xFF)
    found["store_2"] = store("<H", lambda x: int(x) & 0xFFFF)
    for name, form in (("store_4", "<I"), ("store_8", "<II"), ("store_16", "<IIII")):
        found[name] = store(form, word)

    def copy_16(to: int, source: int, size: int) -> None:
        data = bytes(16)
        if size:
            block, offset = memory.at(source, 16)
            data = bytes(block[offset : offset + size]) + bytes(16 - size)
        here.block.memory[to : to + 16] = data

    found["copy_16"] = copy_16
    return found


def prmt(a: int, b: int, selector: int) -> int:
    both = word(a).to_bytes(4, "little") + word(b).to_bytes(4, "little")
    return int.from_bytes(bytes(both[selector >> 4 * i & 7] for i in range(4)), "little")


def signed(byte: int) -> int:
    return (byte & 0xFF ^ 0x80) - 0x80


def dp4a(a: int, b: int, c: int) -> int:
    products = (signed(a >> 8 * i) * signed(b >> 8 * i) for i in range(4))
    return word(c + sum(products))


LANES = np.arange(32)
ROW, COLUMN = LANES // 4, LANES % 4 * 2


def mma_f16(sums: Any, *registers: int) -> Any:
    """PTX ISA, "Matrix fragments for mma.m16n8k16"; each element's sum is of exact products."""
    return together((sums, registers), products)


def products(lanes: list[Any]) -> list[Any]:
    held = np.array([registers for _, registers in lanes], np.uint32).view(np.float16)
    held = held.reshape(32, 6, 2).astype(np.float64)
    a, b = np.zeros((16, 16)), np.zeros((16, 8))
    for half in range(2):
        for register, (down, right) in enumerate(((0, 0), (8, 0), (0, 8), (8, 8))):
            a[ROW + down, COLUMN + right + half] = held[:, register, half]
        for register, down in ((4, 0), (5, 8)):
            b[COLUMN + down + half, ROW] = held[:, register, half]
    c = a @ b
    new = np.stack([c[ROW + i // 2 * 8, COLUMN + i % 2] for i in range(4)], axis=1)
    before = np.array([sums for sums, _ in lanes], np.float64)
    return [tuple(row) for row in (before + new).astype(f32)]


def matrices(address: int, turned: bool = False) -> tuple[int, ...]:
    """ldmatrix, four matrices of 8 by 8 halves."""
    memory = here.block.memory

    def work(addresses: list[Any]) -> list[Any]:
        rows = [np.frombuffer(memory, np.uint16, 8, at) for at in addresses]
        tiles = np.array(rows).reshape(4, 8, 8).astype(np.int64)
        if turned:
            tiles = tiles.swapaxes(1, 2)
        found = tiles[:, ROW, COLUMN] | tiles[:, ROW, COLUMN + 1] << 16
        return [tuple(int(value) for value in lane) for lane in found.T]

    return together(address, work)


def put_16(to: int, *values: int) -> None:
    struct.pack_into("<IIII", here.block.memory, to, *values)


def nothing(*_: Any) -> None:
    pass


def instructions(memory: Memory) -> dict[str, Any]:
    """What stands for the names of kernels_cuda.ptx."""
    return {
        **loads(memory),
        "as_f32": floating,
        "as_u32": bits,
        "low_half": of_half,
        "high_half": lambda x: of_half(x >> 16),
        "half_to_f32": of_half,
        "f32_to_half": half_bits,
        "two_halves": lambda a, b: half_bits(a) | half_bits(b) << 16,
        "rint_i32": lambda x: word(int(np.rint(x))),
        "i32_to_f32": lambda x: f32(np.uint32(word(x)).view(np.int32)),
        "exp2": lambda x: f32(np.exp2(f32(x))),
        "reciprocal": lambda x: f32(1) / f32(x),
        "rsqrt": lambda x: f32(1 / math.sqrt(x)),
        "max_f32": lambda a, b: f32(np.fmax(a, b)),
        "bytes_of": prmt,
        "dp4a": dp4a,
        "signed_byte_to_f32": {i: lambda x, i=i: f32(signed(x >> 8 * i)) for i in range(4)},
        "byte_to_f32": {i: lambda x, i=i: f32(x >> 8 * i & 0xFF) for i in range(4)},
        "shuffle_xor": lambda x, step: gathered(f32(x))[here.lane ^ step],
        "shuffle_xor_u32": lambda x, step: gathered(word(x))[here.lane ^ step],
        "mma_f16": mma_f16,
        "matrices": matrices,
        "matrices_turned": lambda address: matrices(address, True),
        "put_16": put_16,
        "quotient": lambda a, b: int(a) // int(b),
        "remainder": lambda a, b: int(a) % int(b),
        "copies_come": dict.fromkeys(range(3), nothing),
        **dict.fromkeys(("grid_go", "grid_wait", "copies_go"), nothing),
    }


def arrays() -> dict[str, Any]:
    """What stands for the names of kernels_cuda.memory."""

    def shared(n: int, dtype: Any, alignment: int = 16) -> Callable[[], np.ndarray]:
        kind = dtype if isinstance(dtype, type) else np.uint32

        def make() -> np.ndarray:
            with here.block.lock:
                return here.block.arrays.setdefault(id(make), np.full(n, 99, kind))

        return make

    return {
        "shared": shared,
        "registers": lambda n, dtype: lambda: [None] * n,
        "dynamic_shared": lambda: SHARED,
        "matrix_u8": None,
    }


def cuda_names() -> ModuleType:
    """What stands for numba.cuda."""
    cuda = ModuleType("numba.cuda")

    class Names(ModuleType):
        threadIdx = property(lambda self: here.thread)
        blockIdx = property(lambda self: here.index)
        blockDim = property(lambda self: here.dim)
        gridDim = property(lambda self: here.grid)

    cuda.__class__ = Names

    def add(array: np.ndarray, i: int, value: int) -> int:
        with here.block.lock:
            before = int(array[i])
            array[i] += value
        return before

    names = {
        "jit": lambda **_: lambda function: function,
        "syncthreads": lambda: here.block.barrier.wait(),
        "syncwarp": lambda: here.warp.barrier.wait(),
        "ballot_sync": lambda mask, p: sum(bool(q) << i for i, q in enumerate(gathered(p))),
        "shfl_sync": lambda mask, x, lane: gathered(x)[lane],
        "ffs": lambda x: (x & -x).bit_length(),
        "atomic": SimpleNamespace(add=add),
    }
    for name, value in names.items():
        setattr(cuda, name, value)
    types = ModuleType("numba.cuda.types")
    kinds = {"float32": np.float32, "float64": np.float64, "int32": np.int32}
    kinds |= {"int64": int, "uint32": word, "uint16": lambda x: int(x) & 0xFFFF}
    for name, value in kinds.items():
        setattr(types, name, value)
    cuda.types = types  # type: ignore[attr-defined]
    return cuda


@contextmanager
def replaced(memory: Memory) -> Iterator[None]:
    """Imports find what stands for numba and for PTX; kernels' modules are imported afresh."""
    before, attributes = dict(sys.modules), dict(vars(kernels_cuda))
    forget()
    numba, cuda = ModuleType("numba"), cuda_names()
    numba.cuda = cuda  # type: ignore[attr-defined]
    sys.modules |= {"numba": numba, "numba.cuda": cuda, "numba.cuda.types": cuda.types}
    for name, names in (("ptx", instructions(memory)), ("memory", arrays())):
        module = ModuleType(f"kernels_cuda.{name}")
        module.__dict__.update(names)
        sys.modules[module.__name__] = module
    try:
        yield
    finally:
        forget()
        sys.modules.update({name: module for name, module in before.items() if is_ours(name)})
        vars(kernels_cuda).update(attributes)


def is_ours(name: str) -> bool:
    """Whether a module is numba's, or one with kernels."""
    return name.partition(".")[0] in ("numba", "kernels_cuda") and name != "kernels_cuda"


def forget() -> None:
    """Have modules with kernels be imported anew."""
    for name in list(filter(is_ours, sys.modules)):
        del sys.modules[name]
    for name, value in list(vars(kernels_cuda).items()):
        if isinstance(value, ModuleType):
            delattr(kernels_cuda, name)


class EmulatedGpu:
    """As cuda_launch.Gpu, as far as `kernel_runs.Runner` needs it."""

    def __init__(self) -> None:
        self.memory = Memory()

    def put(self, array: np.ndarray) -> int:
        return self.memory.put(array)

    def get(self, address: int, like: np.ndarray) -> np.ndarray:
        block = self.memory.blocks[address >> 32]
        return np.frombuffer(bytes(block), like.dtype).reshape(like.shape).copy()

    def free(self) -> None:
        self.memory.blocks.clear()

    def wait(self) -> None:
        pass

    def launch(self, op: str, variant: str, values: Sequence[Any], dims: Any) -> None:
        how = kernels_cuda.launch(op, variant, dims)
        given = [f32(v) if isinstance(v, float) else v for v in values]
        with replaced(self.memory):
            kernel = kernels_cuda.kernel(op, variant)
            nx, ny, nz = how.grid
            for i in range(nx * ny * nz):
                index = SimpleNamespace(x=i % nx, y=i // nx % ny, z=i // nx // ny)
                run_block(kernel, [*given, *dims.values()], how, index)


def run_block(kernel: Callable[..., None], arguments: Sequence[Any], how: Any, index: Any) -> None:
    n_threads = how.block[0]
    assert n_threads % 32 == 0
    block = Block(n_threads, how.shared)

    def run(number: int) -> None:
        here.block, here.warp, here.lane = block, block.warps[number // 32], number % 32
        here.thread, here.index = SimpleNamespace(x=number, y=0, z=0), index
        here.dim = SimpleNamespace(x=n_threads, y=1, z=1)
        here.grid = SimpleNamespace(x=how.grid[0], y=how.grid[1], z=how.grid[2])
        try:
            with np.errstate(all="ignore"):
                kernel(*arguments)
        except BaseException as error:
            block.fail(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(n_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if block.error is not None:
        raise block.error
