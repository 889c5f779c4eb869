"""Sizes of packed weights; see `fragments` and `tiles` for what lies where."""

from __future__ import annotations

from dataclasses import dataclass

ROWS = 16  # rows of a group
TILE_ROWS, TILE_COLUMNS = 128, 64  # of a tile of halves
TILE_BYTES = TILE_ROWS * TILE_COLUMNS * 2


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a group of 16 rows: blocks of 32 columns, bytes of quants and of all."""

    blocks: int
    quant_bytes: int
    total_bytes: int


STEPS = {
    "q4_0": Step(8, 2048, 2304),
    "q8_0": Step(4, 2048, 2176),
    "q4_1": Step(8, 2048, 2560),
    "q4_k": Step(8, 2048, 2304),
    "q5_k": Step(8, 2048, 2816),
    "q6_k": Step(8, 2048, 3360),
    "iq4_xs": Step(8, 2048, 2176),
}


def packed_shape(variant: str, n: int, k: int) -> tuple[int, int]:
    """Rows and bytes of a row of n rows of k values of a format, as they are packed.

    Raises KeyError for a format that is not packed.
    """
    if variant in ("f16", "bf16"):
        return -(-n // TILE_ROWS) * TILE_ROWS, -(-k // TILE_COLUMNS) * TILE_COLUMNS * 2
    step = STEPS[variant]
    steps = -(-k // (32 * step.blocks))
    return -(-n // ROWS) * ROWS, steps * step.total_bytes // ROWS
