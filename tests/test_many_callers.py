"""Eight threads and a hundred tasks on one model, with random cancels: right texts, flat memory, no
deadlock."""

import os
import threading
import time

import pytest
from scripted import noise, scripted_llama
from storm import storm

import llama3jit

MIB = 2**20
KINDS = {"thread", "thread left", "task", "task cancelled", "task left"}


def ask(question):
    return {
        "prompt": "lorem ipsum dolor "[question % 5 :] * (1 + question % 4),
        "max_tokens": 3 + question % 17,
        "temperature": (0, 0.7, 1.5)[question % 3],
        "seed": question,
    }


def check(weather, llm, growth):
    print(dict(weather.counts), f"growth {weather.growth / MIB:.1f} MiB")
    assert weather.faults == []
    assert set(weather.counts) >= KINDS
    assert weather.growth < growth
    deadline = time.monotonic() + 5
    while not llm._engine._core.scheduler.idle and time.monotonic() < deadline:
        time.sleep(0.01)
    assert llm._engine._core.scheduler.idle


def scripted_storm(seconds, growth):
    before = threading.active_count()
    both = scripted_llama(noise, before=lambda batch: both.runner.batches.clear())
    with both.llama as llm:
        check(storm(llm, ask, 30, seconds), llm, growth)
    assert threading.active_count() <= before


def real_storm(seconds, growth):
    path = os.environ.get("LLAMA3JIT_TEST_MODEL")
    if not path:
        pytest.skip("LLAMA3JIT_TEST_MODEL names no model file")
    with llama3jit.load(path, device="cpu", n_ctx=2048) as llm:
        check(storm(llm, ask, 12, seconds), llm, growth)


def test_a_short_storm():
    scripted_storm(4, 8 * MIB)


def test_a_short_storm_on_real_weights():
    real_storm(6, 16 * MIB)


@pytest.mark.slow
def test_two_minutes():
    scripted_storm(120, 8 * MIB)


@pytest.mark.slow
def test_two_minutes_on_real_weights():
    real_storm(120, 16 * MIB)
