"""A device that keeps its memory in the host's and runs kernels in NumPy, portable and tuned ones,
so that all but the kernels and the driver can be tested without a GPU.

Portable kernels are the references of their ops. Tuned ones are what their names say, of the same
references, on packed weights of which the device remembers what they were made of.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

import kernels_cuda
from kernels_cuda import Launch
from kernels_cuda.leading import LEADING
from llama3jit import ops
from llama3jit.compile.cuda.units import every_unit, is_tuned, signature_of
from llama3jit.compile.entry import dtype_of
from llama3jit.ops import dequantise
from llama3jit.ops.signature import DTYPES

POISON = 0xC5  # what memory holds before it is written; as float32 it is -6321.6
INT8 = ("xq", "xs", "xsum", "xtotal")


class FakeGpu:
    """See llama3jit.devices.cuda.driver.Gpu. A kernel is its unit."""

    ordinal = 0
    name = "a fake GPU"
    capability = (9, 0)
    processors = 132

    def __init__(self, free: int = 2**31) -> None:
        self.free = free
        self.blocks: dict[int, np.ndarray] = {}
        self.host: dict[int, np.ndarray] = {}
        self.packed: dict[int, np.ndarray] = {}  # address -> float64 values [N, K]
        self.launches: list[Any] = []
        self.captures = 0
        self.broken = False
        self.closed = False

    def enter(self) -> None:
        pass

    def memory(self) -> tuple[int, int]:
        return self.free, self.free

    def allocate(self, size: int) -> int:
        block = np.zeros(max(size, 1), np.uint8)
        self.blocks[block.ctypes.data] = block
        return block.ctypes.data

    def release(self, address: int) -> None:
        del self.blocks[address]

    def pinned(self, size: int) -> np.ndarray:
        block = np.full(max(size, 1), POISON, np.uint8)
        self.host[block.ctypes.data] = block
        return block[:size]

    def unpin(self, host: np.ndarray) -> None:
        del self.host[host.ctypes.data]

    def _at(self, address: int, size: int) -> np.ndarray:
        """Bytes of the device's memory; an address outside of it is an error."""
        for base, block in self.blocks.items():
            if base <= address and address + size <= base + block.nbytes:
                return block[address - base : address - base + size]
        raise AssertionError(f"{size} bytes at {address:x} are not the device's")

    def upload(self, address: int, host: np.ndarray) -> None:
        self._at(address, host.nbytes)[:] = host

    def download(self, host: np.ndarray, address: int) -> None:
        host[:] = self._at(address, host.nbytes)

    def copy(self, target: int, source: int, size: int) -> None:
        self._at(target, size)[:] = self._at(source, size)

    def mark(self) -> Any:
        return object()

    def wait(self, mark: Any) -> None:
        pass

    def synchronize(self) -> None:
        if self.broken:
            raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS")

    def capture(self, work: Any) -> Any:
        """A graph is the list of calls; nothing runs while it is made."""
        self.captures += 1
        return work

    def run(self, graph: Any) -> None:
        graph()

    def seconds(self, graph: Any) -> float:
        self.run(graph)
        return 1e-3

    def forget(self, graph: Any) -> None:
        pass

    def launch(
        self, unit: Any, shape: Launch, arguments: list[Any], *, overlap: bool = False
    ) -> None:
        assert all(n >= 1 for n in (*shape.grid, *shape.block))
        assert is_tuned(unit) or not overlap, "a portable kernel does not wait for the last one"
        self.launches.append(unit)
        signature = signature_of(unit.op)
        given = [p for p in signature.parameters if not p.is_function]
        assert len(arguments) == len(given) + len(signature.dims)
        dims = dict(zip(signature.dims, arguments[len(given) :], strict=True))
        values, addresses = {}, {}
        for parameter, argument in zip(given, arguments, strict=False):
            if not parameter.is_array:
                assert type(argument) is (int if parameter.dtype == "i64" else np.float32)
                values[parameter.name] = argument
                continue
            sizes = [int(dim) if dim.isdigit() else dims[dim] for dim in parameter.dims]
            of_halves = unit.variant.startswith("f16") and unit.op.startswith("attention")
            if is_tuned(unit) and of_halves and parameter.name == "k_cache":
                sizes[2], sizes[3] = sizes[3], sizes[2]
            dtype = np.dtype(self._dtype(unit, parameter))
            raw = self._at(argument, int(np.prod(sizes)) * dtype.itemsize)
            values[parameter.name] = raw.view(dtype).reshape(sizes)
            addresses[parameter.name] = argument
        if is_tuned(unit):
            getattr(self, unit.op, self._reference)(unit, values, addresses, dims)
        else:
            reference(unit.op, unit.variant, **values)

    def _dtype(self, unit: Any, parameter: Any) -> str:
        if unit.op in kernels_cuda.FUSED:
            return DTYPES[parameter.dtype]
        return dtype_of(ops.find(unit.op), unit.variant.partition(":")[0], parameter)

    def _reference(self, unit: Any, values: Any, addresses: Any, dims: Any) -> None:
        """An op that has the same arguments tuned as portable."""
        reference(unit.op, unit.variant.partition(":")[0], **values)

    def pack(self, unit: Any, values: Any, addresses: Any, dims: Any) -> None:
        rows = dequantise.rows(values["weight"], unit.variant).astype(np.float64)
        self.packed[addresses["packed"]] = rows

    def stacked(self, address: int, n: int) -> np.ndarray:
        """Rows of packed weights, one under the other, from an address on."""
        found = [self.packed[address]]
        while sum(map(len, found)) < n:
            later = [at for at in self.packed if at > address]
            address = min(later)
            found.append(self.packed[address])
        return np.concatenate(found)[:n]

    def matmul(self, unit: Any, values: Any, addresses: Any, dims: Any) -> None:
        weight = self.stacked(addresses["weight"], dims["N"])
        values["out"][:] = values["x"].astype(np.float64) @ weight.T

    def matmul_int8(self, unit: Any, values: Any, addresses: Any, dims: Any) -> None:
        weight = self.stacked(addresses["weight"], dims["N"])
        x = values["xq"].astype(np.float64) * np.repeat(values["xs"], 32, axis=1)
        values["out"][:] = x @ weight.T

    def halve(self, unit: Any, values: Any, addresses: Any, dims: Any) -> None:
        tiles = -(-dims["T"] // 128) * -(-dims["K"] // 256)
        assert dims["size"] == 128 * 256 * tiles
        flat = values["xh"][: values["x"].size]
        flat[:] = values["x"].reshape(-1).astype(np.float16).view(np.uint16)

    def matmul_halves(self, unit: Any, values: Any, addresses: Any, dims: Any) -> None:
        n, k = dims["T"], values["K"]
        x = values["xh"][: n * k].view(np.float16).reshape(n, k)
        values["out"][:] = x.astype(np.float64) @ self.stacked(addresses["weight"], dims["N"]).T

    def attention(self, unit: Any, values: Any, addresses: Any, dims: Any) -> None:
        kind = unit.variant.split(":")[0]
        reference("attention", kind, **{**values, "k_cache": keys_of(kind, values)})

    def hadamard(self, unit: Any, values: Any, addresses: Any, dims: Any) -> None:
        reference("hadamard", "", x=values["x"])

    def rope_turn(self, unit: Any, values: Any, addresses: Any, dims: Any) -> None:
        heads, kv_heads = dims["heads"], dims["kv_heads"]
        x = values["qkv"].copy()
        turned = np.ascontiguousarray(x[:, : heads + kv_heads])
        reference("rope", "", x=turned, turns=values["turns"])
        x[:, : heads + kv_heads] = turned
        reference("hadamard", "", x=x)
        values["q"][:] = x[:, :heads]
        values["k"][:] = x[:, heads : heads + kv_heads]
        values["v"][:] = x[:, heads + kv_heads :]

    def kv_append(self, unit: Any, values: Any, addresses: Any, dims: Any) -> None:
        if unit.variant != "f16":
            reference("kv_append", unit.variant, **values)
            return
        k_cache = values["k_cache"].reshape(values["v_cache"].shape)
        append(k_cache, values["k"], values)
        append(values["v_cache"], values["v"], values)

    def rope_append(self, unit: Any, values: Any, addresses: Any, dims: Any) -> None:
        heads, kv_heads = dims["heads"], dims["kv_heads"]
        qkv = values["qkv"].copy()
        turned = np.ascontiguousarray(qkv[:, : heads + kv_heads])
        reference("rope", "", x=turned, turns=values["turns"])
        values["q"][:] = turned[:, :heads]
        append(values["k_cache"], turned[:, heads:], values)
        append(values["v_cache"], qkv[:, heads + kv_heads :], values)

    def attention_chunks(self, unit: Any, values: Any, addresses: Any, dims: Any) -> None:
        """All of a token in its first chunk, and nothing in the others."""
        q, sums, weights = values["q"], values["sums"], values["weights"]
        kind = unit.variant.split(":")[0]
        keys = keys_of(kind, values)
        out = np.zeros(q.shape, np.float32)
        where = {name: values[name] for name in ("positions", "seq_of", "block_tables")}
        rest = {"v_cache": values["v_cache"], "scale": values["scale"], "window": values["window"]}
        assert dims["chunks"] >= values["block_tables"].shape[1]
        reference("attention", kind, out=out, q=q, k_cache=keys, **rest, **where)
        sums[:], weights[:] = POISON, 0
        sums[:, :, 0], weights[:, :, 0, 1] = out, 1

    def attention_merge(self, unit: Any, values: Any, addresses: Any, dims: Any) -> None:
        values["out"][:] = values["sums"][:, :, 0]

    def attention_merge_quantize(self, unit: Any, values: Any, addresses: Any, dims: Any) -> None:
        quantise(values, values["sums"][:, :, 0])

    def add_rmsnorm(self, unit: Any, values: Any, addresses: Any, dims: Any) -> None:
        values["x"] += values["y"]
        normed(values, values["out"])

    def add_rmsnorm_quantize(self, unit: Any, values: Any, addresses: Any, dims: Any) -> None:
        values["x"] += values["y"]
        quantise(values, normed(values, np.empty_like(values["x"])))

    def rmsnorm_quantize(self, unit: Any, values: Any, addresses: Any, dims: Any) -> None:
        quantise(values, normed(values, np.empty_like(values["x"])))

    def swiglu_quantize(self, unit: Any, values: Any, addresses: Any, dims: Any) -> None:
        gate, up = values["gate_up"].swapaxes(0, 1).copy()
        out = np.empty_like(gate)
        reference("swiglu", "", out=out, gate=gate, up=up)
        quantise(values, out)

    def leading(self, unit: Any, values: Any, addresses: Any, dims: Any) -> None:
        found, logits = values["leading"], values["logits"]
        found[:, 0] = np.where(np.isfinite(logits).all(axis=1), LEADING, -1)
        ids = np.argsort(-logits, axis=1, kind="stable")[:, :LEADING]
        found[:, 1 : 1 + LEADING] = ids
        largest = np.ascontiguousarray(np.take_along_axis(logits, ids, axis=1))
        found[:, 1 + LEADING :] = largest.view(np.int32)

    def close(self) -> None:
        self.closed = True
        self.blocks.clear()
        self.host.clear()


def reference(op: str, variant: str, **values: Any) -> None:
    """Run the op's NumPy reference."""
    run = ops.find(op).numpy
    assert run is not None
    if "variant" in inspect.signature(run).parameters:
        values["variant"] = variant
    run(**values)


def keys_of(kind: str, values: Any) -> np.ndarray:
    """The cache of keys as the op has it: halves lie like the values', quants as they are there."""
    if kind != "f16":
        return values["k_cache"]
    return values["k_cache"].reshape(values["v_cache"].shape).swapaxes(2, 3)


def quantise(values: Any, x: np.ndarray) -> None:
    reference("quantize", "", x=x.reshape(len(x), -1), **{name: values[name] for name in INT8})


def normed(values: Any, out: np.ndarray) -> np.ndarray:
    reference("rmsnorm", "", out=out, **{name: values[name] for name in ("x", "weight", "eps")})
    return out


def append(cache: np.ndarray, x: np.ndarray, values: Any) -> None:
    """Rows [T, heads, head_dim] into a cache of halves [block, head, token, head_dim]."""
    for t, s in enumerate(values["seq_of"]):
        if s >= 0:
            at, within = divmod(int(values["positions"][t]), cache.shape[2])
            block = values["block_tables"][s, at]
            cache[block, :, within] = x[t].astype(np.float16).view(np.uint16)


def kernels() -> dict[Any, Any]:
    """What a runner takes as its loaded kernels."""
    return {unit: unit for unit in every_unit()}
