"""The choice of a device, limits, and the check of memory before anything is loaded."""

import numpy as np
import pytest
from driving import opened
from tiny_model import tiny_model

from llama3jit.devices import choose
from llama3jit.devices.choose import check_memory, make_limits
from llama3jit.devices.cpu.lower import lower
from llama3jit.devices.cpu.runner import memory_needed
from llama3jit.errors import InvalidArgumentError, MemoryLimitError
from llama3jit.files.gguf import open_gguf
from llama3jit.model.build import build_plan
from llama3jit.model.config import read_config


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("m") / "m.gguf", formats={"*": "Q4_0"})


@pytest.fixture
def config(tiny):
    return read_config(open_gguf(tiny.path))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "gpu"}, "device is 'gpu'; expected auto, cpu, cuda, reference"),
        ({"kv_dtype": "q5_0"}, "kv_dtype is 'q5_0'; expected f16, f32, q8_0, q4_0"),
        ({"kv_dtype": "q8_0"}, "kv_dtype q8_0 .*head_dim is 16, .*use f16 or f32"),
        ({"kv_dtype": "q4_0", "device": "reference"}, "kv_dtype q4_0 .*head_dim is 16"),
        ({"precision": "slow"}, "precision is 'slow'; expected fast, exact"),
        ({"n_ctx": 0}, "n_ctx is 0: expected 1 to"),
        ({"n_ctx": 2**31}, "n_ctx is 2147483648: expected 1 to"),
        ({"max_sequences": 0}, "max_sequences is 0"),
        ({"max_tokens": 65537}, "max_tokens is 65537"),
        ({"max_sequences": 9, "max_tokens": 8}, "max_sequences is 9; a batch of max_tokens 8"),
        ({"threads": 0}, "threads is 0"),
    ],
)
def test_choices_that_there_are_not(tiny, options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        opened(tiny, **options)


@pytest.mark.parametrize("name", ["n_ctx", "threads", "max_sequences"])
@pytest.mark.parametrize("value", ["64", 64.0, True, float("nan"), []])
def test_numbers_that_are_none(tiny, name, value):
    with pytest.raises(InvalidArgumentError, match=f"{name} is .*: expected a whole number"):
        opened(tiny, **{name: value})


def test_numbers_of_numpy_do_not_wrap(config):
    limits = make_limits(config, np.int8(100), np.int8(100), np.int16(512))
    assert limits == make_limits(config, 100, 100, 512)
    assert type(limits.n_ctx) is int


@pytest.mark.parametrize("value", [None, 5, b"cpu", ["cpu"]])
def test_a_device_that_is_no_text(tiny, value):
    with pytest.raises(
        InvalidArgumentError, match=r"device is .*; expected auto, cpu, cuda, reference"
    ):
        opened(tiny, device=value)


def test_limits(config):
    limits = make_limits(config, None, 8, 512)
    assert limits.n_ctx == 512  # the model's own
    assert limits.n_blocks == 8 + 7
    assert limits.block_tokens == 64
    assert limits.vocab_size == 300
    assert make_limits(config, 100, 1, 64).n_blocks == 2


@pytest.mark.parametrize(
    ("kv_dtype", "bytes_of_32"), [("f32", 128), ("f16", 64), ("q8_0", 34), ("q4_0", 18)]
)
def test_memory_of_the_cache(tmp_path, kv_dtype, bytes_of_32):
    """Bytes that a context takes, in what is asked for and in what is taken."""
    tiny = tiny_model(tmp_path / "m.gguf", head_dim=64, n_head=4, n_head_kv=2, n_layer=3)
    gguf = open_gguf(tiny.path)
    config = read_config(gguf)
    limits = make_limits(config, 192, 1, 64)
    plan = build_plan(config, gguf.tensors, kv_dtype)
    expected = 3 * 192 * 2 * 2 * (64 // 32) * bytes_of_32
    assert memory_needed(lower(plan, "fast"), limits)["kv"] == expected
    runner = opened(tiny, kv_dtype=kv_dtype, n_ctx=192, max_sequences=1, max_tokens=64)
    arrays = [runner._arrays[name] for name in runner._arrays if name.endswith("_cache")]
    assert sum(array.nbytes for array in arrays) == expected
    runner.close()


def test_memory_is_checked_before_a_tensor_is_read(tiny, monkeypatch):
    """With too little memory the error says what for, and no weight was looked at."""
    monkeypatch.setattr(choose, "available_memory", lambda: 50 * 2**20)
    monkeypatch.setattr("llama3jit.files.gguf.GGUFFile.data", None)
    with pytest.raises(
        MemoryLimitError, match=r"needs \d+ MiB .*weights .*kv .*50 MiB are available"
    ):
        opened(tiny)


def test_a_context_beyond_memory_is_refused(tiny):
    with pytest.raises(MemoryLimitError, match="use a smaller n_ctx than 2000000000"):
        opened(tiny, n_ctx=2_000_000_000)


def test_what_fits_passes(config, monkeypatch):
    limits = make_limits(config, None, 1, 1)
    monkeypatch.setattr(choose, "available_memory", lambda: choose.OVERHEAD_BYTES + 1000)
    check_memory({"weights": 600, "kv": 400}, limits)
    with pytest.raises(MemoryLimitError):
        check_memory({"weights": 600, "kv": 401}, limits)


def test_the_group_may_have_less_than_the_machine(monkeypatch):
    monkeypatch.setattr("llama3jit.devices.cgroup.memory_left", lambda: 12345)
    assert choose.available_memory() == 12345
    monkeypatch.setattr("llama3jit.devices.cgroup.memory_left", lambda: None)
    assert choose.available_memory() > 2**20


def test_the_memory_that_linux_says_is_available(tmp_path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 900 kB\nMemFree:  10 kB\nMemAvailable:     345 kB\nSwap: 1 kB\n")
    assert choose.machine_memory_left(str(meminfo)) == 345 * 1024


@pytest.mark.parametrize("text", ["MemTotal: 900 kB\n", "MemAvailable: lots\n", "", None])
def test_memory_where_linux_does_not_say(tmp_path, monkeypatch, text):
    import psutil

    class Memory:
        available = 777

    monkeypatch.setattr(psutil, "virtual_memory", Memory)
    meminfo = tmp_path / "meminfo"
    if text is not None:
        meminfo.write_text(text)
    assert choose.machine_memory_left(str(meminfo)) == 777
