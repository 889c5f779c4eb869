"""The block formats of GGUF tensors: how many values a block holds, how many bytes it takes.

Sizes are those of ggml's type table (ggml.h, `enum ggml_type`, and the block structs of
ggml-common.h). A format that the devices can run also has a row in `llama3jit.ops.dequantise`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """One tensor type: `block_size` values stored in `block_bytes` bytes along a row."""

    name: str
    ggml_type: int
    block_size: int
    block_bytes: int

    def row_bytes(self, n: int) -> int:
        """Bytes of a row of `n` values; `n` must be a multiple of the block size."""
        return n // self.block_size * self.block_bytes


_ROWS = [
    ("F32", 0, 1, 4),
    ("F16", 1, 1, 2),
    ("Q4_0", 2, 32, 18),
    ("Q4_1", 3, 32, 20),
    ("Q5_0", 6, 32, 22),
    ("Q5_1", 7, 32, 24),
    ("Q8_0", 8, 32, 34),
    ("Q8_1", 9, 32, 40),
    ("Q2_K", 10, 256, 84),
    ("Q3_K", 11, 256, 110),
    ("Q4_K", 12, 256, 144),
    ("Q5_K", 13, 256, 176),
    ("Q6_K", 14, 256, 210),
    ("Q8_K", 15, 256, 292),
    ("IQ2_XXS", 16, 256, 66),
    ("IQ2_XS", 17, 256, 74),
    ("IQ3_XXS", 18, 256, 98),
    ("IQ1_S", 19, 256, 50),
    ("IQ4_NL", 20, 32, 18),
    ("IQ3_S", 21, 256, 110),
    ("IQ2_S", 22, 256, 82),
    ("IQ4_XS", 23, 256, 136),
    ("I8", 24, 1, 1),
    ("I16", 25, 1, 2),
    ("I32", 26, 1, 4),
    ("I64", 27, 1, 8),
    ("F64", 28, 1, 8),
    ("IQ1_M", 29, 256, 56),
    ("BF16", 30, 1, 2),
    ("TQ1_0", 34, 256, 54),
    ("TQ2_0", 35, 256, 66),
    ("MXFP4", 39, 32, 17),
    ("NVFP4", 40, 64, 36),
    ("Q1_0", 41, 128, 18),
]

FORMATS: dict[str, BlockFormat] = {row[0]: BlockFormat(*row) for row in _ROWS}
BY_GGML_TYPE: dict[int, BlockFormat] = {row.ggml_type: row for row in FORMATS.values()}
