"""The CPU runner under cancellation, threads, forks and interrupts."""

import os
import signal
import threading
import time

import numpy as np
import pytest
from driving import ids_of, logits_of, opened
from tiny_model import MIXED, tiny_model

from llama3jit.errors import CancelledError, DeviceError
from llama3jit.model.batch import Piece, make_batch

LONG = 10000  # tokens of a pass that takes about a second, nearly all of it in one row


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("m") / "m.gguf", formats=MIXED)


@pytest.fixture
def runner(tiny):
    runner = opened(tiny)
    yield runner
    runner.close()


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """A runner, its long batch, how long that takes, and the logits of a short text."""
    path = tmp_path_factory.mktemp("m") / "slow.gguf"
    tiny = tiny_model(path, n_layer=1, n_embd=256, n_head=8, n_head_kv=8, n_ff=512)
    runner = opened(tiny, n_ctx=LONG, max_tokens=LONG, precision="exact", kv_dtype="f32")
    batch = make_batch([Piece(ids_of(LONG), 0, range(-(-LONG // 64)))])
    expected = logits_of(runner, ids_of(40))
    began = time.perf_counter()
    runner.forward(batch)
    return runner, batch, time.perf_counter() - began, expected


def test_cancel_ends_a_long_pass(slow):
    runner, batch, seconds, expected = slow
    timer = threading.Timer(0.1 * seconds, runner.cancel)
    timer.start()
    began = time.perf_counter()
    with pytest.raises(CancelledError):
        runner.forward(batch)
    took = time.perf_counter() - began
    timer.join()
    assert took < 0.6 * seconds
    assert np.array_equal(logits_of(runner, ids_of(40)), expected)


def test_cancel_again_and_again(slow):
    """At any moment of a pass, from another thread, and nothing is left behind."""
    runner, batch, seconds, expected = slow
    for share in (0.0, 0.01, 0.03, 0.08):
        timer = threading.Timer(share * seconds, runner.cancel)
        timer.start()
        try:
            if share:
                with pytest.raises(CancelledError):
                    runner.forward(batch)
        finally:
            timer.join()
        runner.begin()  # the first was not within a pass
        assert np.array_equal(logits_of(runner, ids_of(40)), expected)


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_cancel_without_a_pass_ends_the_next_unless_it_is_forgotten(tiny, device):
    runner = opened(tiny, device)
    expected = logits_of(runner, ids_of(9)).copy()
    runner.cancel()
    with pytest.raises(CancelledError):
        logits_of(runner, ids_of(9))
    assert np.array_equal(logits_of(runner, ids_of(9)), expected)
    runner.cancel()
    runner.begin()
    assert np.array_equal(logits_of(runner, ids_of(9)), expected)
    runner.close()


def test_a_keyboard_interrupt_leaves_the_runner_sound(slow):
    runner, batch, _, expected = slow
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        runner.forward(batch)  # raised when the pass is over: signals are handled between calls
    timer.join()
    assert np.array_equal(logits_of(runner, ids_of(40)), expected)


def test_after_close(tiny):
    runner = opened(tiny)
    runner.close()
    runner.close()
    runner.cancel()
    with pytest.raises(DeviceError, match="closed"):
        runner.forward(make_batch([Piece([1], 0, [0])]))


def in_parallel(*functions):
    """Run them at once; raise what the first of them raised."""
    failures = []

    def guarded(function):
        try:
            function()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(f,), daemon=True) for f in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    for failure in failures:
        raise failure


def test_two_models_in_two_threads(runner, tmp_path):
    other = opened(tiny_model(tmp_path / "o.gguf", seed=5), precision="exact")
    expected = {r: logits_of(r, ids_of(70)) for r in (runner, other)}

    def again(mine):
        for _ in range(15):
            assert np.array_equal(logits_of(mine, ids_of(70)), expected[mine])

    in_parallel(lambda: again(runner), lambda: again(other))
    other.close()
    again(runner)


def test_models_on_pools_of_different_sizes(tiny):
    runners = [opened(tiny, threads=n) for n in (1, 2, 3)]
    expected = logits_of(runners[0], ids_of(40))

    def again(mine):
        for _ in range(10):
            assert np.array_equal(logits_of(mine, ids_of(40)), expected)

    in_parallel(*(lambda mine=mine: again(mine) for mine in runners))


def test_cancelling_one_model_leaves_the_other_alone(runner, tiny):
    other = opened(tiny)
    done = threading.Event()
    expected = logits_of(runner, ids_of(70))

    def cancelling():
        while not done.is_set():
            other.cancel()

    def running():
        try:
            for _ in range(15):
                assert np.array_equal(logits_of(runner, ids_of(70)), expected)
        finally:
            done.set()

    in_parallel(cancelling, running)


def test_idle_threads_sleep(runner):
    logits_of(runner, ids_of(9))
    time.sleep(0.3)  # they spin a while first
    began = time.process_time()
    time.sleep(1.0)
    assert time.process_time() - began < 0.02


def test_threads_wake_up_again(runner):
    expected = logits_of(runner, ids_of(9))
    for pause in (0.0, 0.001, 0.2, 0.4):
        time.sleep(pause)
        assert np.array_equal(logits_of(runner, ids_of(9)), expected)


def in_child(function):
    """The exit status of `function` in a forked child: 0 when it returns."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            function()
            status = 0
        finally:
            os._exit(status)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "it hangs"


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_a_forked_child_is_told(runner):
    def use():
        with pytest.raises(DeviceError, match=r"forked .* load the model in the child"):
            logits_of(runner, [1, 2, 3])

    assert in_child(use) == 0


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_a_forked_child_may_load_the_model_itself(runner, tiny):
    expected = logits_of(runner, [1, 2, 3])

    def load():
        assert np.array_equal(logits_of(opened(tiny), [1, 2, 3]), expected)

    assert in_child(load) == 0
    assert np.array_equal(logits_of(runner, [1, 2, 3]), expected)


def test_nan_weights_reach_the_logits(tmp_path):
    """Nothing on the way makes a number of a NaN."""
    for precision in ("fast", "exact"):
        tiny = tiny_model(tmp_path / "nan.gguf", formats=MIXED)
        raw = bytearray(tiny.path.read_bytes())
        with opened_gguf(tiny.path) as gguf:
            info = gguf.tensors["blk.0.ffn_norm.weight"]
        at = info.offset + 4 * 11
        raw[at : at + 4] = np.array([np.nan], np.float32).tobytes()
        tiny.path.write_bytes(raw)
        runner = opened(tiny, precision=precision)
        assert np.isnan(logits_of(runner, ids_of(9))).all()
        runner.close()


def opened_gguf(path):
    from llama3jit.files.gguf import open_gguf

    return open_gguf(path)
