"""The interleaved form of weights, on every face and against the layout as it is described."""

import numpy as np
import pytest
from block_values import BLOCK_BYTES, QUANTISED, random_blocks, values_of
from op_faces import faces_of, run

from llama3jit.ops.pack import LAYOUTS, padded_rows

ROWS = [1, 3, 17, 32, 63, 100]
CASES = [(face, v) for v in LAYOUTS for face in faces_of("pack", v, njit=v == "q4_1")]


def value_in_tile(tile, variant, r, k):
    """Value k < 32 (or 0) of row r, as the text of llama3jit/ops/pack.py places it."""
    if variant not in QUANTISED:
        size = BLOCK_BYTES[variant]
        return values_of(tile[None, r * size : (r + 1) * size], variant)[0, 0]
    heads = 2 if variant == "q4_1" else 1
    halves = tile[: 32 * heads].view(np.float16)
    d = float(halves[r])
    if variant == "q8_0":
        byte = tile[32 * heads :].reshape(8, 16, 4)[k // 4, r, k % 4]
        return d * (int(byte) - 128)
    byte = int(tile[32 * heads :].reshape(4, 16, 4)[k % 16 // 4, r, k % 4])
    q = byte % 16 if k < 16 else byte // 16
    return float(np.float32(d * q + float(halves[16 + r]))) if heads == 2 else d * (q - 8)


@pytest.mark.parametrize(("face", "variant"), CASES)
@pytest.mark.parametrize("n", ROWS)
def test_pack(face, variant, n):
    k = 64 if variant in QUANTISED else 7
    weight = random_blocks(np.random.default_rng(n), variant, n, k)
    packed = np.full(padded_rows(n) * weight.shape[1], 0xA5, np.uint8)
    run("pack", variant, face, packed=packed, weight=weight)
    tile_bytes = 16 * BLOCK_BYTES[variant]
    columns = 32 if variant in QUANTISED else 1
    # Pairs of groups of 16 rows; in a pair, for each block of columns, a tile of each group.
    tiles = packed.reshape(-1, k // columns, 2, tile_bytes)
    expected = values_of(weight, variant)
    for row in range(padded_rows(n)):
        pair, group, r = row // 32, row // 16 % 2, row % 16
        for column in {0, 1, 15, 16, 31, k - 1} if columns == 32 else range(k):
            tile = tiles[pair, column // columns, group]
            found = value_in_tile(tile, variant, r, column % columns)
            assert found == (expected[row, column] if row < n else 0), (row, column)


@pytest.mark.parametrize(("face", "variant"), CASES)
def test_pack_is_its_reference_to_the_byte(face, variant):
    weight = random_blocks(np.random.default_rng(0), variant, 49, 96)
    found = np.full(padded_rows(49) * weight.shape[1], 0xA5, np.uint8)
    expected = np.full_like(found, 0x5A)
    run("pack", variant, face, packed=found, weight=weight)
    run("pack", variant, "reference", packed=expected, weight=weight)
    assert np.array_equal(found, expected)


def test_packed_weights_are_hardly_larger():
    for n in range(576, 2000):
        assert n <= padded_rows(n) <= 1.05 * n + 3  # 607 of 577 rows are 5.4 %
    for n in (576, 960, 1536, 2048, 4096, 14336, 49152, 128256):
        assert padded_rows(n) <= 1.05 * n
