"""Metadata to a configuration: sound ones, and each way to be wrong by name."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from tiny_model import tiny_metadata

from llama3jit.errors import ModelFormatError, UnsupportedError
from llama3jit.model.config import ModelConfig, RopeConfig, read_config


def config_of(tensors=None, **changes):
    """The configuration of tiny metadata with changes; None takes a key away."""
    metadata = tiny_metadata() | {"llama.vocab_size": 300}
    for name, value in changes.items():
        key = name.replace("__", ".")
        metadata[key if key.startswith("general") else f"llama.{key}"] = value
    metadata = {key: value for key, value in metadata.items() if value is not None}
    return read_config(SimpleNamespace(metadata=metadata, tensors=tensors or {}))


def test_a_plain_model():
    assert config_of() == ModelConfig(
        architecture="llama",
        n_layer=2,
        n_embd=64,
        n_head=4,
        n_head_kv=2,
        head_dim=16,
        n_ff=96,
        vocab_size=300,
        context_length=512,
        rms_eps=1e-5,
        rope=RopeConfig(dim=16, base=10000.0, original_context=512),
        attention_scale=0.25,
        sliding_window=0,
    )


def test_what_is_left_out():
    config = config_of(attention__head_count_kv=None, rope__freq_base=None)
    assert config.n_head_kv == 4
    assert config.rope.base == 10000.0


def test_the_vocabulary_is_that_of_the_embedding():
    tensors = {"token_embd.weight": SimpleNamespace(shape=(64, 311))}
    assert config_of(tensors).vocab_size == 311
    assert config_of(tensors, vocab_size=None).vocab_size == 311
    with pytest.raises(ModelFormatError, match=r"lacks llama\.vocab_size"):
        config_of(vocab_size=None)


def test_head_dim_from_key_length():
    config = config_of(attention__key_length=24, attention__value_length=24, embedding_length=66)
    assert config.head_dim == 24
    assert config.rope.dim == 24
    assert config.attention_scale == pytest.approx(24**-0.5)
    assert config_of(attention__key_length=32, rope__dimension_count=8).rope.dim == 8


def test_other_numbers():
    config = config_of(attention__sliding_window=128, attention__scale=0.5)
    assert (config.sliding_window, config.attention_scale) == (128, 0.5)


def rope_of(**changes):
    return config_of(**{f"rope__{name}": value for name, value in changes.items()}).rope


def test_rope_scaling():
    plain = RopeConfig(dim=16, base=10000.0, original_context=512)
    changed = {"scaling": "linear", "factor": 4.0}
    assert rope_of(scaling__type="linear", scaling__factor=4.0) == dataclasses.replace(
        plain, **changed
    )
    assert rope_of(scale_linear=4.0) == dataclasses.replace(plain, **changed)
    yarn = rope_of(
        scaling__type="yarn",
        scaling__factor=8.0,
        scaling__original_context_length=64,
        scaling__attn_factor=0.9,
        scaling__yarn_beta_fast=16.0,
        scaling__yarn_beta_slow=2.0,
        scaling__yarn_ext_factor=-1.0,
    )
    assert yarn == dataclasses.replace(
        plain,
        scaling="yarn",
        factor=8.0,
        original_context=64,
        attention_factor=0.9,
        beta_fast=16.0,
        beta_slow=2.0,
    )
    assert rope_of(scaling__type="none") == plain


FORMAT_ERRORS = [
    ({"general__architecture": None}, r"lacks general\.architecture"),
    ({"general__architecture": 3}, r"lacks general\.architecture"),
    ({"block_count": None}, r"lacks llama\.block_count"),
    ({"embedding_length": None}, r"lacks llama\.embedding_length"),
    ({"context_length": None}, r"lacks llama\.context_length"),
    ({"feed_forward_length": None}, r"lacks llama\.feed_forward_length"),
    ({"attention__head_count": None}, r"lacks llama\.attention\.head_count"),
    (
        {"attention__layer_norm_rms_epsilon": None},
        r"lacks llama\.attention\.layer_norm_rms_epsilon",
    ),
    ({"block_count": 0}, r"llama\.block_count is 0; expected a number of at least 1"),
    ({"block_count": -2}, r"llama\.block_count is -2"),
    ({"block_count": "2"}, r"llama\.block_count is '2'"),
    ({"block_count": True}, r"llama\.block_count is True"),
    ({"block_count": [2, 2]}, r"llama\.block_count is \[2, 2\]"),
    ({"block_count": 2.5}, r"llama\.block_count is 2\.5; expected a whole number"),
    (
        {"context_length": 2**31},
        r"llama\.context_length is .*; expected a whole number below 2\^31",
    ),
    (
        {"attention__head_count": 3, "attention__head_count_kv": 2},
        "3 attention heads cannot share 2",
    ),
    ({"attention__head_count_kv": 8}, "4 attention heads cannot share 8"),
    ({"embedding_length": 66}, r"embedding_length 66 is not a multiple of the 4 heads"),
    ({"attention__layer_norm_rms_epsilon": float("nan")}, "is nan"),
    ({"attention__layer_norm_rms_epsilon": -1e-5}, "expected a number of at least 0"),
    ({"rope__dimension_count": 15}, r"llama\.rope\.dimension_count is 15; expected an even number"),
    ({"rope__dimension_count": 18}, r"dimension_count is 18; expected an even number up to 16"),
    ({"rope__freq_base": 0.0}, r"llama\.rope\.freq_base is 0\.0; expected a number above 0"),
    ({"rope__freq_base": float("inf")}, r"llama\.rope\.freq_base is inf"),
    ({"rope__freq_base": 1.0, "rope__scaling__type": "yarn"}, "freq_base is 1, with which yarn"),
    ({"rope__scaling__type": np.array([1, 2])}, r"llama\.rope\.scaling\.type is array"),
    ({"rope__scaling__type": 3}, r"llama\.rope\.scaling\.type is 3; expected text"),
    ({"rope__scaling__factor": 0.0}, r"llama\.rope\.scaling\.factor is 0\.0"),
    ({"attention__scale": 0.0}, r"llama\.attention\.scale is 0\.0"),
    ({"attention__sliding_window": -1}, r"llama\.attention\.sliding_window is -1"),
]
UNSUPPORTED = [
    ({"general__architecture": "gpt2"}, r"architecture 'gpt2' is not supported .*inspect"),
    ({"expert_count": 8}, r"mixture of experts .llama\.expert_count is 8"),
    ({"attention__value_length": 8}, "keys of 16 and values of 8 components"),
    ({"rope__scaling__type": "longrope"}, "rope scaling 'longrope' is not supported"),
]


@pytest.mark.parametrize(("changes", "message"), FORMAT_ERRORS)
def test_metadata_that_makes_no_sense(changes, message):
    with pytest.raises(ModelFormatError, match=message):
        config_of(**changes)


@pytest.mark.parametrize(("changes", "message"), UNSUPPORTED)
def test_what_has_no_plan(changes, message):
    with pytest.raises(UnsupportedError, match=message):
        config_of(**changes)


def test_no_experts_is_no_mixture():
    assert config_of(expert_count=0) == config_of()
