"""Blocks of the KV cache copied, read, written: what was computed in one is as good in another."""

import numpy as np
import pytest
from driving import ids_of, opened
from fake_gpu import FakeGpu
from test_cuda_runner import EXACT, FAST, PORTABLE, WIDE, on_fake
from tiny_model import tiny_model

from llama3jit.errors import DeviceError, InvalidArgumentError
from llama3jit.model.batch import Piece, make_batch

DTYPES = ["f16", "f32", "q8_0", "q4_0"]
N = 70  # tokens: a full block and a part of one
ON_GPU = pytest.param("cuda", marks=pytest.mark.gpu)
GPU_WAYS = {"cuda fast": FAST, "cuda exact": EXACT, "cuda portable": PORTABLE}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    path = tmp_path_factory.mktemp("m") / "m.gguf"
    return tiny_model(path, seed=3, **{**WIDE, "formats": {"*": "Q8_0"}})


def open_on(tiny, device, kv_dtype):
    if device in GPU_WAYS:
        return on_fake(tiny, FakeGpu(), kv_dtype, ways=GPU_WAYS[device])
    return opened(tiny, device, kv_dtype=kv_dtype)


def filled(runner, table):
    """Put all tokens but the last into blocks."""
    runner.forward(make_batch([Piece(ids_of(N)[:-1], 0, table, "none")]))


def last_logits(runner, table):
    return runner.forward(make_batch([Piece(ids_of(N)[-1:], N - 1, table)])).copy()


@pytest.mark.parametrize("kv_dtype", DTYPES)
@pytest.mark.parametrize("device", ["cpu", "reference", *GPU_WAYS, ON_GPU])
def test_blocks_move_within_a_cache_and_between_two(tiny, device, kv_dtype):
    runner = open_on(tiny, device, kv_dtype)
    filled(runner, [1, 4])
    expected = last_logits(runner, [1, 4])
    before = [runner.read_block(block) for block in (1, 4)]
    n_blocks = runner.limits.n_blocks
    assert {(data.dtype, data.nbytes) for data in before} == {(np.dtype(np.uint8), len(before[0]))}
    if device == "cpu":
        assert len(before[0]) * n_blocks == runner.memory["kv"]
    runner.copy_block(1, n_blocks - 1)
    runner.copy_block(4, 0)
    assert np.array_equal(last_logits(runner, [n_blocks - 1, 0]), expected)
    for block, data in zip((1, 4), before, strict=True):
        assert np.array_equal(runner.read_block(block)[:100], data[:100])

    other = open_on(tiny, device, kv_dtype)
    for block, data in zip((2, n_blocks - 1), before, strict=True):
        other.write_block(block, data)
        assert np.array_equal(other.read_block(block), data)
        assert not other.read_block(block - 1).any()
    assert np.array_equal(last_logits(other, [2, n_blocks - 1]), expected)
    other.close()
    runner.close()


@pytest.mark.parametrize("device", ["cpu", "reference", "cuda fast"])
def test_a_block_of_another_size_is_refused_and_so_is_a_closed_runner(tiny, device):
    runner = open_on(tiny, device, "f16")
    data = runner.read_block(0)
    with pytest.raises(InvalidArgumentError, match=rf"expected uint8\[{len(data)}\]"):
        runner.write_block(0, data[:-1])
    with pytest.raises(InvalidArgumentError, match=r"given as float32"):
        runner.write_block(0, data.view(np.float32))
    runner.write_block(0, data)
    runner.close()
    for work in (lambda: runner.copy_block(0, 1), lambda: runner.read_block(0)):
        with pytest.raises(DeviceError, match="closed"):
            work()


def test_a_gpu_that_fails_says_so(tiny):
    gpu = FakeGpu()
    runner = on_fake(tiny, gpu)
    gpu.broken = True
    with pytest.raises(DeviceError, match="ILLEGAL_ADDRESS; load the model again"):
        runner.read_block(0)
    with pytest.raises(DeviceError, match="ILLEGAL_ADDRESS; load the model again"):
        runner.copy_block(0, 1)
