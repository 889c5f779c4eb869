"""Rotary frequencies: each scaling against its formula written one pair at a time, and against
transformers' where there is torch."""

import math

import numpy as np
import pytest

from llama3jit.model.config import RopeConfig
from llama3jit.model.rope_frequencies import inverse_frequencies

LLAMA31 = RopeConfig(
    dim=128,
    base=500000.0,
    scaling="llama3",
    factor=8.0,
    original_context=8192,
    low_frequency_factor=1.0,
    high_frequency_factor=4.0,
)
LLAMA32 = RopeConfig(
    dim=64,
    base=500000.0,
    scaling="llama3",
    factor=32.0,
    original_context=8192,
    low_frequency_factor=1.0,
    high_frequency_factor=4.0,
)
YARN = RopeConfig(dim=128, base=10000.0, scaling="yarn", factor=16.0, original_context=4096)
YARN_SMALL = RopeConfig(
    dim=64, base=1e6, scaling="yarn", factor=4.0, original_context=2048, beta_fast=16, beta_slow=2
)
LINEAR = RopeConfig(dim=80, base=10000.0, scaling="linear", factor=4.0)


def plain(rope):
    return [rope.base ** (-2 * i / rope.dim) for i in range(rope.dim // 2)]


def llama3(rope):
    """As Llama 3.1's release describes it: three bands by wavelength."""
    result = []
    for w in plain(rope):
        wavelength = 2 * math.pi / w
        if wavelength < rope.original_context / rope.high_frequency_factor:
            result.append(w)
        elif wavelength > rope.original_context / rope.low_frequency_factor:
            result.append(w / rope.factor)
        else:
            smooth = rope.original_context / wavelength - rope.low_frequency_factor
            smooth /= rope.high_frequency_factor - rope.low_frequency_factor
            result.append((1 - smooth) * w / rope.factor + smooth * w)
    return result


def yarn(rope):
    """The paper's ramp, with its ends at whole pairs as in the authors' code."""

    def pair(turns):
        wavelength = rope.original_context / turns
        return rope.dim / 2 * math.log(wavelength / (2 * math.pi), rope.base)

    low = max(math.floor(pair(rope.beta_fast)), 0)
    high = min(math.ceil(pair(rope.beta_slow)), rope.dim - 1)
    result = []
    for i, w in enumerate(plain(rope)):
        interpolated = min(max((i - low) / (high - low), 0), 1)
        result.append(w / rope.factor * interpolated + w * (1 - interpolated))
    return result


def test_plain_and_linear():
    base = RopeConfig(dim=80, base=10000.0)
    assert inverse_frequencies(base, None)[0] == pytest.approx(plain(base), rel=1e-14, abs=0)
    assert inverse_frequencies(base, None)[1] == 1
    expected = [w / 4 for w in plain(base)]
    assert inverse_frequencies(LINEAR, None)[0] == pytest.approx(expected, rel=1e-14, abs=0)


@pytest.mark.parametrize("rope", [LLAMA31, LLAMA32])
def test_llama3(rope):
    found, magnitude = inverse_frequencies(rope, None)
    assert found == pytest.approx(llama3(rope), rel=1e-12, abs=0)
    assert magnitude == 1
    assert found.dtype == np.float64


@pytest.mark.parametrize("rope", [YARN, YARN_SMALL])
def test_yarn(rope):
    found, magnitude = inverse_frequencies(rope, None)
    assert found == pytest.approx(yarn(rope), rel=1e-12, abs=0)
    assert magnitude == pytest.approx(0.1 * math.log(rope.factor) + 1, rel=1e-12, abs=0)


def test_factors_of_the_file_divide():
    base = RopeConfig(dim=8, base=10000.0)
    factors = np.array([1, 2, 4, 8], np.float32)
    expected = [w / float(f) for w, f in zip(plain(base), factors, strict=True)]
    assert inverse_frequencies(base, factors)[0] == pytest.approx(expected, rel=1e-14, abs=0)


def test_factors_stand_for_the_llama3_formula():
    """A file that has both is scaled once."""
    factors = (np.array(plain(LLAMA31)) / llama3(LLAMA31)).astype(np.float32)
    found, _ = inverse_frequencies(LLAMA31, factors)
    assert found == pytest.approx(llama3(LLAMA31), rel=1e-6)


@pytest.mark.parametrize("rope", [LLAMA31, LLAMA32, YARN, YARN_SMALL, LINEAR])
def test_as_transformers_has_it(rope):
    pytest.importorskip("torch", reason="transformers computes frequencies by torch")
    utils = pytest.importorskip("transformers.modeling_rope_utils")
    from transformers import LlamaConfig

    config = LlamaConfig(
        hidden_size=rope.dim * 4,
        num_attention_heads=4,
        max_position_embeddings=int(rope.original_context * rope.factor) or 4096,
        rope_parameters={
            "rope_type": rope.scaling,
            "rope_theta": rope.base,
            "factor": rope.factor,
            "original_max_position_embeddings": rope.original_context,
            **{
                "llama3": {"low_freq_factor": 1.0, "high_freq_factor": 4.0},
                "yarn": {"beta_fast": rope.beta_fast, "beta_slow": rope.beta_slow},
            }.get(rope.scaling, {}),
        },
    )
    expected, magnitude = utils.ROPE_INIT_FUNCTIONS[rope.scaling](config, "cpu")
    found = inverse_frequencies(rope, None)
    assert found[0] == pytest.approx(expected.double().numpy(), rel=2e-5)
    assert found[1] == pytest.approx(magnitude, rel=1e-6)
