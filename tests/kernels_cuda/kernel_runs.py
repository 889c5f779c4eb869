"""Runs one tuned GPU kernel on arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from cuda_launch import Gpu, dims_of, signature, stem
from format_blocks import FLOATS, put_scales

import kernels_cuda
from kernels_cuda.layouts import packed_shape
from llama3jit.files.formats import FORMATS
from llama3jit.ops.dequantise import VALUES


@dataclass
class Runner:
    gpu: Gpu
    build: bool

    def run(self, op: str, variant: str = "", **operands: Any) -> dict[str, np.ndarray]:
        """Launch the kernel once; every array as it is afterwards."""
        shapes = {k: v.shape for k, v in operands.items() if isinstance(v, np.ndarray)}
        dims = dims_of(op, shapes)
        tuned = kernels_cuda.variant_of(op, variant, dims)
        assert tuned is not None, f"no kernel for {op} {variant} {dims}"
        if self.build and not (self.gpu.cubins / f"{stem(op, tuned)}.cubin").exists():
            from compiling import assemble, ptx_of

            code, _ = assemble(ptx_of(op, tuned))
            (self.gpu.cubins / f"{stem(op, tuned)}.cubin").write_bytes(code)
        order = [name for name, _, _ in signature(op)]
        assert set(order) == set(operands)
        at = {name: self.gpu.put(operands[name]) for name in shapes}
        values = [at[n] if n in at else as_scalar(op, n, operands[n]) for n in order]
        self.gpu.launch(op, tuned, values, dims)
        self.gpu.wait()
        found = {name: self.gpu.get(at[name], operands[name]) for name in shapes}
        self.gpu.free()
        return found

    def packed(self, weight: np.ndarray, variant: str, n: int, k: int) -> np.ndarray:
        shape = packed_shape(variant, n, k)
        out = np.full(shape[0] * shape[1], 0xA5, np.uint8)
        return self.run("pack", variant, packed=out, weight=weight)["packed"].reshape(shape)


def as_scalar(op: str, name: str, value: Any) -> int | float:
    kind = next(t for n, t, _ in signature(op) if n == name)
    return float(value) if kind == "f32" else int(value)


def random_weight(rng: np.random.Generator, variant: str, n: int, k: int) -> np.ndarray:
    """u8[n, row_bytes] of any bytes, with scales that make the values ordinary."""
    if variant in FLOATS:
        return rng.standard_normal((n, k)).astype(FLOATS[variant]).view(np.uint8)
    if variant == "bf16":
        bits = rng.standard_normal((n, k)).astype(np.float32).view(np.uint32) >> 16
        return bits.astype(np.uint16).view(np.uint8)
    form = FORMATS[variant.upper()]
    blocks = rng.integers(0, 256, (n * k // form.block_size, form.block_bytes), np.uint8)
    put_scales(blocks, variant, np.ones(len(blocks)))
    unit = VALUES[variant](blocks).astype(np.float64).std()
    signs = rng.choice([-1, 1], len(blocks))
    put_scales(blocks, variant, rng.uniform(0.5, 1.5, len(blocks)) * signs / unit)
    return blocks.reshape(n, -1)


def error(found: np.ndarray, expected: np.ndarray) -> float:
    """Size of the difference over that of what is expected; infinite where a NaN is."""
    assert found.shape == expected.shape
    if not np.isfinite(found).all():
        return float("inf")
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def nans(*shape: int) -> np.ndarray:
    return np.full(shape, np.nan, np.float32)


def int8_buffers(t: int, k: int) -> dict[str, np.ndarray]:
    """What `quantize` makes, not made yet."""
    return {
        "xq": np.full((t, k), 99, np.int8),
        "xs": nans(t, k // 32),
        "xsum": np.full((t, k // 16), 9999, np.int32),
        "xtotal": nans(t, k // 32),
    }
