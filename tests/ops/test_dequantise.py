"""Block formats to float32: the whole tensor, and one value at a time."""

import block_values
import numpy as np
import pytest
from block_values import random_blocks
from format_blocks import HALVES, put_half, values_of

from llama3jit.files.formats import FORMATS as BLOCK_FORMATS
from llama3jit.ops import dequantise, grids, i_quants

# Halves that a scale or minimum may be: zeros, infinities, NaN, the smallest and largest denormal,
# the largest number, 1.
SPECIAL_HALVES = [0x0000, 0x8000, 0x7C00, 0xFC00, 0x7E00, 0x0001, 0x83FF, 0x7BFF, 0x3C00]
# Doubles around the ends of float32: what rounds to infinity and what just does not, denormals,
# what rounds to 0 and what just does not, ties.
TIES = [
    1 + 2.0**-24,
    1 + 3 * 2.0**-24,
    1 + 2.0**-24 + 2.0**-52,
    5 * 2.0**-150,
    2.0**-126 - 2.0**-151,
]
ENDS = [2.0**128 - 2.0**103, 2.0**128 - 2.0**103 - 2.0**75, 2.0**128, 1e300, 2.0**-149]
ENDS += [2.0**-150, 2.0**-150 + 2.0**-202, 2.0**-151, 5e-324, 0.0, np.inf, np.nan]
SPECIAL_DOUBLES = [sign * x for x in TIES + ENDS for sign in (1, -1)]


def blocks_of(variant):
    """Special blocks, then blocks of any bytes."""
    rng = np.random.default_rng(5)
    size = dequantise.BLOCK_BYTES[variant]
    if variant == "f64":
        special = np.array(SPECIAL_DOUBLES).view(np.uint8).reshape(-1, 8)
        return np.concatenate([special, rng.integers(0, 256, (400, size), np.uint8)])
    blocks = rng.integers(0, 256, (700, size), np.uint8)
    blocks[0], blocks[1] = 0x00, 0xFF
    halves = np.array(SPECIAL_HALVES, np.uint16)
    first = 2
    for at in [0] if variant == "iq1_m" else HALVES.get(variant, {}):
        # On bytes of all sorts, on zeros, and on ones.
        special = blocks[first : first + 3 * len(halves)]
        special[len(halves) : 2 * len(halves)] = 0x00
        special[2 * len(halves) :] = 0xFF
        put_half(special, variant, at, np.tile(halves, 3))
        first += len(special)
    if variant == "mxfp4":
        blocks[:256, 0] = np.arange(256)
    if variant == "nvfp4":
        blocks[:256, :4] = np.arange(256)[:, None]
    return blocks


def bits(values):
    """The bits of float32 values, all NaN made one."""
    values = np.where(np.isnan(values), np.float32(np.nan), values).astype(np.float32)
    return values.view(np.uint32)


def test_every_format_has_all_its_parts():
    assert set(dequantise.VALUES) == set(dequantise.FORMATS) == set(dequantise.BLOCK_BYTES)
    for name, size in dequantise.BLOCK_BYTES.items():
        assert BLOCK_FORMATS[name.upper()].block_bytes == size
        blocks = np.zeros((3, size), np.uint8)
        assert dequantise.VALUES[name](blocks).shape == (3, BLOCK_FORMATS[name.upper()].block_size)


def test_every_format_that_the_gguf_package_reads_is_there():
    gguf = pytest.importorskip("gguf")
    for name, form in BLOCK_FORMATS.items():
        try:
            gguf.dequantize(
                np.zeros((1, form.block_bytes), np.uint8), gguf.GGMLQuantizationType[name]
            )
        except NotImplementedError:
            continue
        assert name.lower() in dequantise.FORMATS


@pytest.mark.parametrize("variant", dequantise.VALUES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_values_are_those_of_the_gguf_package(variant):
    blocks = blocks_of(variant)
    found = dequantise.VALUES[variant](blocks)
    assert found.dtype == np.float32
    assert np.array_equal(bits(found), bits(values_of(blocks, variant).reshape(found.shape)))


@pytest.mark.parametrize("variant", dequantise.VALUES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_one_value_at_a_time_is_the_same(variant):
    blocks = blocks_of(variant)[:40]
    weight = blocks.reshape(8, -1)
    expected = dequantise.rows(weight, variant)
    function = dequantise.FORMATS[variant]["dequantise"]
    some = np.unique(np.linspace(0, expected.shape[1] - 1, 300).astype(int)).tolist()
    with np.errstate(all="ignore"):
        found = [[function(weight, n, k) for k in some] for n in range(8)]
    assert {type(value) for row in found for value in row} == {np.float32}
    assert np.array_equal(bits(np.array(found)), bits(expected[:, some]))


@pytest.mark.parametrize("variant", block_values.BLOCK_BYTES)
def test_values_are_what_the_layout_says(variant):
    weight = random_blocks(np.random.default_rng(6), variant, 5, 96)
    expected = block_values.values_of(weight, variant)
    assert np.array_equal(dequantise.rows(weight, variant), expected.astype(np.float32))


@pytest.mark.parametrize(
    ("name", "levels"),
    [
        ("IQ1_S", i_quants.LEVELS_1),
        ("IQ2_XXS", i_quants.LEVELS_2),
        ("IQ2_XS", i_quants.LEVELS_2),
        ("IQ2_S", i_quants.LEVELS_2),
        ("IQ3_XXS", i_quants.LEVELS_3_XXS),
        ("IQ3_S", 2 * np.arange(8) + 1),
    ],
)
def test_grids_are_those_of_the_gguf_package(name, levels):
    theirs = getattr(pytest.importorskip("gguf").quants, name)
    theirs.init_grid()
    words = getattr(grids, name.removesuffix("_S") if name == "IQ1_S" else name)
    found = levels[i_quants.digits(words[None], theirs.grid_shape[1])]
    assert np.array_equal(found.reshape(theirs.grid_shape), theirs.grid.reshape(theirs.grid_shape))


def test_eight_signs_are_those_of_the_gguf_package():
    table = np.frombuffer(pytest.importorskip("gguf").quants.IQ2_XXS.ksigns, np.uint8)
    assert [i_quants.eight_signs(seven) for seven in range(128)] == table.tolist()
