"""Shapes of the products with few tokens on sm_90: what lies where in shared memory.

A block of threads stays for as long as there are rows: it takes 16 rows at a time, its warps share
the columns, and each has a ring of pieces of the weight (`rings`). Up to 8 tokens' activations lie
beside them from the start. Those of more come by slices of columns, the next one while one is in
use, and two teams of warps take 16 rows each. All offsets are bytes.
"""

from __future__ import annotations

MOST = 226 * 1024  # bytes of shared memory that a block may take
RING = 120 * 1024  # bytes of all rings, where there is room
# Bytes that a block takes at least, so that a multiprocessor has room for one: else two blocks of
# the next kernel settle where this one's end first, and leave other multiprocessors idle.
LEAST = 116 * 1024
WARPS = 16
ROWS = 16
BARRIERS = 4096  # bytes: for up to 32 stages of 16 warps


def row_bytes_of(values, width):
    """Bytes between rows of activations, so that 8 rows fall into different banks."""
    return (values * width + 127) // 128 * 128 + 32 * width


def fixed_bytes(columns, blocks, tokens, width, arrays):
    """Bytes before the rings: barriers, partial sums of two rounds, rows of so many columns of
    `width` bytes, `arrays` scales a block."""
    partial = 2 * WARPS * ROWS * tokens * 4
    total = BARRIERS + partial + tokens * row_bytes_of(columns, width)
    return (total + arrays * blocks * tokens * 4 + 127) // 128 * 128


def stages_of(fixed, piece):
    """Places in a ring of pieces of so many bytes."""
    return max(2, min(32, min(RING, MOST - fixed) // (WARPS * piece)))


# With more than 8 tokens, which are taken 16 at a time; `slices_bytes` is then `fixed_bytes`.
TOKENS = 16
TEAM = 8  # warps that share the columns of 16 rows
SLICE = 2048  # columns; there is room for two slices
SLICE_ROW = SLICE + 32  # bytes from a token's columns to the next one's
PITCH = (TOKENS + 2) * 4  # bytes from a block's scales to the next one's
SLICE_SCALES = SLICE // 32 * PITCH  # bytes of a slice's scales


def slices_bytes(arrays):
    total = BARRIERS + WARPS * ROWS * TOKENS * 4 + 2 * TOKENS * SLICE_ROW
    return (total + 2 * arrays * SLICE_SCALES + 127) // 128 * 128
