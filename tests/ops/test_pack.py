"""The interleaved form of weights, on every face and against the layout as it is described."""

import numpy as np
import pytest
from block_values import BLOCK_BYTES, QUANTISED, random_blocks, values_of
from format_blocks import random_weight
from op_faces import faces_of, run

from llama3jit.files.formats import FORMATS
from llama3jit.ops.pack import LAYOUTS, padded_rows

ROWS = [1, 3, 17, 32, 63, 100]
CASES = [(face, v) for v in LAYOUTS for face in faces_of("pack", v, njit=v == "q4_1")]
# The pieces of a block in order: halves by twos, small scales by ones, quants by fours.
PIECES = {
    "f32": [4],
    "f16": [2],
    "bf16": [2],
    "q4_0": [2] + [4] * 4,
    "q4_1": [2, 2] + [4] * 4,
    "q5_0": [2] + [4] * 5,
    "q5_1": [2, 2] + [4] * 5,
    "q8_0": [2] + [4] * 8,
    "q2_k": [1] * 16 + [4] * 16 + [2, 2],
    "q3_k": [4] * 24 + [1] * 12 + [2],
    "q4_k": [2, 2] + [1] * 12 + [4] * 32,
    "q5_k": [2, 2] + [1] * 12 + [4] * 40,
    "q6_k": [4] * 48 + [1] * 16 + [2],
    "iq4_nl": [2] + [4] * 4,
    "iq4_xs": [2, 2] + [1] * 4 + [4] * 32,
    "mxfp4": [1] + [4] * 4,
}


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


@pytest.mark.parametrize(("face", "variant"), [case for case in CASES if case[1] in BLOCK_BYTES])
@pytest.mark.parametrize("n", ROWS)
def test_values_lie_where_they_should(face, variant, n):
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


def rows_of(packed, variant):
    """The rows that a packed weight u8[rows, row_bytes] was made of, piece by piece; those of
    padding as well."""
    pieces = PIECES[variant]
    rows = np.zeros_like(packed)
    block_bytes = sum(pieces)
    stream = iter(packed.tobytes())
    for pair in range(len(rows) // 32):
        for block in range(rows.shape[1] // block_bytes):
            for group in (2 * pair, 2 * pair + 1):
                at = block * block_bytes
                for piece in pieces:
                    for row in range(16 * group, 16 * group + 16):
                        rows[row, at : at + piece] = [next(stream) for _ in range(piece)]
                    at += piece
    assert next(stream, None) is None
    return rows


@pytest.mark.parametrize(("face", "variant"), CASES)
@pytest.mark.parametrize("n", [1, 49])
def test_pack(face, variant, n):
    weight = some_weight(variant, n)
    packed = np.full((padded_rows(n), weight.shape[1]), 0xA5, np.uint8)
    run("pack", variant, face, packed=packed.reshape(-1), weight=weight)
    found = rows_of(packed, variant)
    if variant == "q8_0":
        values = found.reshape(-1, 34)
        values[:, 2:] -= 128  # they are packed as unsigned bytes
    assert np.array_equal(found[:n], weight)
    assert not found[n:].any()


def some_weight(variant, n):
    size = FORMATS[variant.upper()].block_size
    return random_weight(np.random.default_rng(n), variant, n, 2 * size if size > 1 else 7)


@pytest.mark.parametrize(("face", "variant"), CASES)
def test_pack_is_its_reference_to_the_byte(face, variant):
    weight = some_weight(variant, 49)
    found = np.full(padded_rows(49) * weight.shape[1], 0xA5, np.uint8)
    expected = np.full_like(found, 0x5A)
    run("pack", variant, face, packed=found, weight=weight)
    run("pack", variant, "reference", packed=expected, weight=weight)
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("variant", LAYOUTS)
@pytest.mark.parametrize("n", ROWS)
def test_the_tuned_kernel_gives_the_bytes_of_the_portable_op(variant, n):
    weight = some_weight(variant, n)
    found, expected = np.full((2, padded_rows(n) * weight.shape[1]), 0xA5, np.uint8)
    run("pack", variant, "tuned", packed=found, weight=weight)
    run("pack", variant, "cpu", packed=expected, weight=weight)
    assert np.array_equal(found, expected)


def test_packed_weights_are_hardly_larger():
    for n in range(576, 2000):
        assert n <= padded_rows(n) <= 1.05 * n + 3  # 607 of 577 rows are 5.4 %
    for n in (576, 960, 1536, 2048, 4096, 14336, 49152, 128256):
        assert padded_rows(n) <= 1.05 * n
