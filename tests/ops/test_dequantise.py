"""Block formats to float32: the whole tensor, and one value at a time."""

import numpy as np
import pytest
from block_values import BLOCK_BYTES, QUANTISED, random_blocks, values_of

from llama3jit.files.formats import FORMATS as BLOCK_FORMATS
from llama3jit.ops import dequantise

# Halves that a scale or minimum may be: zeros, infinities, NaN, the smallest and largest denormal,
# the largest number.
SPECIAL_HALVES = [0x0000, 0x8000, 0x7C00, 0xFC00, 0x7E00, 0x0001, 0x83FF, 0x7BFF]


def blocks_of(variant):
    """Blocks of any bytes, then some with special scales."""
    rng = np.random.default_rng(5)
    size = BLOCK_BYTES[variant]
    blocks = rng.integers(0, 256, (400, size), np.uint8)
    if variant in QUANTISED:
        for i, half in enumerate(SPECIAL_HALVES):
            blocks[i, :2] = np.array([half], "<u2").view(np.uint8)
        if variant == "q4_1":
            for i, half in enumerate(SPECIAL_HALVES):
                blocks[16 + i, 2:4] = np.array([half], "<u2").view(np.uint8)
    return blocks


def bits(values):
    """The bits of float32 values, all NaN made one."""
    values = np.where(np.isnan(values), np.float32(np.nan), values).astype(np.float32)
    return values.view(np.uint32)


def test_every_format_has_all_its_parts():
    assert set(dequantise.VALUES) == set(dequantise.FORMATS) == set(dequantise.BLOCK_BYTES)
    for name, size in dequantise.BLOCK_BYTES.items():
        assert BLOCK_FORMATS[name.upper()].block_bytes == size


@pytest.mark.parametrize("variant", dequantise.VALUES)
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_values_are_those_of_the_gguf_package(variant):
    gguf = pytest.importorskip("gguf")
    blocks = blocks_of(variant)
    if variant in ("f32", "f16"):
        # That package copies NaN payloads through float32 in its own way; numbers are numbers.
        blocks = blocks.reshape(-1, BLOCK_BYTES[variant])
    kind = gguf.GGMLQuantizationType[variant.upper()]
    dtype = {"f32": np.float32, "f16": np.float16}.get(variant, np.uint8)
    expected = gguf.quants.dequantize(blocks.view(dtype), kind)
    found = dequantise.VALUES[variant](blocks)
    assert np.array_equal(bits(found), bits(expected.reshape(found.shape)))


@pytest.mark.parametrize("variant", dequantise.VALUES)
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_one_value_at_a_time_is_the_same(variant):
    blocks = blocks_of(variant)[:40]
    weight = blocks.reshape(8, -1)
    expected = dequantise.rows(weight, variant)
    function = dequantise.FORMATS[variant]["dequantise"]
    with np.errstate(all="ignore"):
        found = [[function(weight, n, k) for k in range(expected.shape[1])] for n in range(8)]
    assert np.array_equal(bits(np.array(found)), bits(expected))


@pytest.mark.parametrize("variant", dequantise.VALUES)
def test_values_are_what_the_layout_says(variant):
    weight = random_blocks(np.random.default_rng(6), variant, 5, 96)
    expected = values_of(weight, variant)
    assert np.array_equal(dequantise.rows(weight, variant), expected.astype(np.float32))
