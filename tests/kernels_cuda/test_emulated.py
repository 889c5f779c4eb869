"""Tuned GPU kernels on a made-up GPU: the tests of the real one, on small shapes."""

import pytest
import test_cuda_attention
import test_quantised_cache
import test_rows
from emulator import EmulatedGpu
from kernel_runs import Runner


@pytest.fixture
def emulated():
    return Runner(EmulatedGpu(), build=False)


@pytest.mark.parametrize("kinds", [slice(3, 4), slice(5, 6)], ids=["ties", "a NaN"])
def test_leading(emulated, kinds):
    test_rows.check_leading(emulated, 300, kinds)


@pytest.mark.parametrize("kind", test_quantised_cache.KINDS)
def test_what_is_written_to_a_quantised_cache(emulated, kind):
    test_quantised_cache.test_what_is_written(emulated, kind, 1, 64)


@pytest.mark.slow
@pytest.mark.parametrize("kind", test_quantised_cache.KINDS)
@pytest.mark.parametrize("case", [((1,), 4, 4, 64, 0), ((66, 3), 2, 1, 128, 9)])
def test_attention_to_a_quantised_cache(emulated, kind, case):
    test_quantised_cache.test_attention(emulated, kind, *case)


@pytest.mark.slow
def test_many_tokens(emulated):
    test_cuda_attention.test_many_tokens(emulated, ((60, 7), (0, 2)), 2, 1, 64, 0)


def test_turns(emulated):
    test_quantised_cache.test_turns(emulated, 4, 2, 64, 32)


def test_decode(emulated):
    test_cuda_attention.test_decode(emulated, (1,), 4, 4, 64, 0)


@pytest.mark.parametrize("shape", [(1, 32), (2, 96)])
def test_rows_to_int8(emulated, shape):
    test_rows.test_rows_to_int8(emulated, shape)


def test_rope_and_caches(emulated):
    test_rows.test_rope_and_caches(emulated, 3, 1, 128, 5)
