"""The packed block formats: of a tile of 16 rows its bytes and columns, its spans of columns that
share a scale, and how to read scales and values.

TILE        bytes of a tile
COLUMNS     columns of a tile
SPANS       spans of a tile, of 4 QUADS columns each
ZERO        what was added to make the values unsigned
MINIMA      whether something is added after scaling
scales_of   see kernels_cpu.scales
quad_of     see kernels_cpu.values; VALUES, HIGH_BITS are byte offsets in a row's block, TABLE the
            bytes that nibbles stand for
"""

from __future__ import annotations

from kernels_cpu import scales, values
from llama3jit.ops.pack import LAYOUTS

IQ4_TABLE = (1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241)
MXFP4_TABLE = (128, 129, 130, 131, 132, 134, 136, 140, 128, 127, 126, 125, 124, 122, 120, 116)


def _small(scales_of, quad_of, zero=0, minima=False, **names):
    """32 columns with one scale."""
    return {
        "COLUMNS": 32,
        "SPANS": 1,
        "QUADS": 8,
        "ZERO": zero,
        "MINIMA": minima,
        "scales_of": scales_of,
        "quad_of": quad_of,
        **names,
    }


def _large(spans, scales_of, quad_of, zero=0, minima=False, **names):
    """256 columns in 8 or 16 spans."""
    row = _small(scales_of, quad_of, zero, minima, **names)
    return {**row, "COLUMNS": 256, "SPANS": spans, "QUADS": 64 // spans}


half, half_min = scales.half_scale, scales.half_scale_and_minimum

TILES = {
    "q4_0": _small(half, values.half_bytes, 8, VALUES=2),
    "q4_1": _small(half_min, values.half_bytes, minima=True, VALUES=4),
    "q5_0": _small(half, values.five_bits, 16, VALUES=6, HIGH_BITS=2),
    "q5_1": _small(half_min, values.five_bits, minima=True, VALUES=8, HIGH_BITS=4),
    "q8_0": _small(half, values.whole_bytes, 128, VALUES=2),
    "iq4_nl": _small(half, values.looked_up, 128, VALUES=2, TABLE=IQ4_TABLE),
    "mxfp4": _small(scales.power_scale, values.looked_up, 128, VALUES=1, TABLE=MXFP4_TABLE),
    "q2_k": _large(16, scales.scales_q2_k, values.two_bits, minima=True, VALUES=16),
    "q3_k": _large(16, scales.scales_q3_k, values.three_bits, 4, VALUES=32),
    "q4_k": _large(8, scales.scales_q4_k, values.half_bytes_of_pairs, minima=True, VALUES=16),
    "q5_k": _large(
        8, scales.scales_q4_k, values.five_bits_of_pairs, minima=True, VALUES=48, HIGH_BITS=16
    ),
    "q6_k": _large(16, scales.scales_q6_k, values.six_bits, 32),
    "iq4_xs": _large(
        8, scales.scales_iq4_xs, values.looked_up_of_pairs, 128, VALUES=8, TABLE=IQ4_TABLE
    ),
}
TILES = {name: {**row, "TILE": 16 * LAYOUTS[name]["BLOCK_BYTES"]} for name, row in TILES.items()}
