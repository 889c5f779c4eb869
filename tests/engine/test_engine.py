"""The engine on a scripted runner, which finds tokens through the block tables as a device does."""

import dataclasses
import gc
import math
import os
import signal
import threading
import time
import weakref

import numpy as np
import pytest
from scripted import ASSISTANT, END, LIMITS, VOCAB, ScriptedRunner, noise, peak, replying

from llama3jit.engine.engine import Engine
from llama3jit.engine.sequence import Request, SamplingParams
from llama3jit.errors import (
    CancelledError,
    ContextOverflowError,
    DeviceError,
    InvalidArgumentError,
    NumericsError,
)

GREEDY = SamplingParams(temperature=0)


@pytest.fixture
def make():
    """An engine on a runner; afterwards every block must be free again."""
    opened = []

    def build(script=noise, before=None, **changes):
        runner = ScriptedRunner(script, dataclasses.replace(LIMITS, **changes), before)
        opened.append(engine := Engine(runner))
        engine.runner = runner
        return engine

    yield build
    for engine in opened:
        pool = engine._core.scheduler.pool
        engine.close()
        pool.check([])
        assert engine.runner.closed == 1


def run(engine, tokens, params=GREEDY, end_ids=frozenset({END})):
    handle = engine.submit(Request(tokens, params, end_ids))
    return [event.token for event in handle], handle.finish.reason


def expected(tokens, params, seed, n):
    """The same generation with neither engine nor cache."""
    from llama3jit.engine.sampler import sample

    tokens = list(tokens)
    for step in range(n):
        tokens.append(sample(noise(tokens), params, seed, step))
    return tokens[-n:]


def test_generates_what_the_script_says_and_stops_at_the_end_token(make):
    engine = make(replying("Hi!"))
    assert run(engine, [65, ASSISTANT]) == (list(b"Hi!"), "stop")


@pytest.mark.parametrize("prompt", [1, 2, 15, 16, 17, 33, 100])
def test_prompts_run_in_chunks_and_reach_the_cache_whole(make, prompt):
    engine = make()
    tokens = [(7 * i + 1) % 256 for i in range(prompt)]
    params = SamplingParams(max_tokens=9, seed=4)
    assert run(engine, tokens, params) == (expected(tokens, params, 4, 9), "length")
    prefill = [len(b.tokens) for b in engine.runner.batches[:-8]]
    assert prefill == [16] * (prompt // 16) + [prompt % 16] * (prompt % 16 > 0)
    rows = [len(b.logits_rows) for b in engine.runner.batches]
    assert sum(rows) == 9  # logits for the last token of the prompt and for each one after


def test_a_device_that_gives_the_largest_logits_gives_the_same_tokens(make):
    """Where they are enough for every sequence of a pass."""
    engine = make()
    engine.runner.n_leading = 64
    for params in (
        SamplingParams(max_tokens=9, seed=4),
        SamplingParams(max_tokens=9, temperature=0),
    ):
        tokens = [5, 6, 7]
        want = expected(tokens, params, 4, params.max_tokens)
        assert run(engine, tokens, params)[0] == want
    asked = engine.runner.asked_leading
    assert asked == 18
    for params in (SamplingParams(9, top_k=0, seed=4), SamplingParams(9, seed=4, logprobs=True)):
        assert run(engine, [5, 6, 7], params)[0] == expected([5, 6, 7], params, 4, 9)
    list(engine.submit(Request([5, 6], visit=lambda first, rows: None)))
    assert engine.runner.asked_leading == asked


def test_where_the_largest_logits_cannot_be_told_whole_rows_say_why(make):
    def script(history):
        row = peak(65)
        row[3] = math.inf
        return row

    engine = make(script)
    engine.runner.n_leading = 64
    with pytest.raises(NumericsError, match="step 0: 1 of 260"):
        run(engine, [7])


def test_generation_ends_where_the_context_ends(make):
    engine = make(n_ctx=32)
    tokens, reason = run(engine, [1] * 28)
    assert (len(tokens), reason) == (4, "length")
    assert run(engine, [1] * 31)[1] == "length"
    tokens, reason = run(engine, [1] * 28, SamplingParams(temperature=0, max_tokens=99))
    assert (len(tokens), reason) == (4, "length")


def test_a_prompt_that_never_fits_is_refused_with_the_counts(make):
    engine = make(n_ctx=32)
    with pytest.raises(ContextOverflowError, match=r"32 tokens.*max_tokens is 5.*holds 32"):
        engine.submit(Request([1] * 32, SamplingParams(max_tokens=5)))
    with pytest.raises(InvalidArgumentError, match="no tokens"):
        engine.submit(Request([]))


def test_a_small_pool_bounds_the_context(make):
    engine = make(n_blocks=5)
    assert engine.n_ctx == 20
    with pytest.raises(ContextOverflowError, match="holds 20"):
        engine.submit(Request([1] * 20))
    assert len(run(engine, [1] * 10)[0]) == 10


@pytest.mark.parametrize("bad", [-1, VOCAB, 10**12])
def test_ids_outside_the_vocabulary_are_refused(make, bad):
    with pytest.raises(InvalidArgumentError, match=rf"token 2 .* is {bad}: .* 0 to {VOCAB - 1}"):
        make().submit(Request([1, 2, bad]))


def test_ties_go_to_the_lowest_id(make):
    def script(history):
        return np.where(np.isin(np.arange(VOCAB), [9, 5, 200]), 3, 0).astype(np.float32)

    assert run(make(script), [1], SamplingParams(temperature=0, max_tokens=3))[0] == [5, 5, 5]


def test_nan_is_an_error_of_its_sequence_and_names_the_step(make):
    def script(history):
        row = peak(65)
        row[3] = math.nan if history[0] == 7 and len(history) == 5 else 0
        return row

    engine = make(script)
    good = engine.submit(Request([1, 2], SamplingParams(max_tokens=20)))
    with pytest.raises(NumericsError, match="step 2: 1 of 260"):
        run(engine, [7, 7, 7])
    assert [e.token for e in good] == [65] * 20


@pytest.mark.parametrize("blocks", [LIMITS.n_blocks, 40])
def test_eight_threads_get_the_texts_that_they_get_alone(make, blocks):
    engine = make(n_blocks=blocks)
    params = [
        SamplingParams(max_tokens=10 + 3 * i, seed=i, temperature=i / 4, top_k=(0, 5)[i % 2])
        for i in range(8)
    ]
    prompts = [[i] * (1 + 7 * i) for i in range(8)]
    results = {}

    def work(i):
        results[i] = run(engine, prompts[i], params[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    for i in range(8):
        n = params[i].max_tokens
        assert results[i] == (expected(prompts[i], params[i], i, n), "length")


def test_sequences_that_outgrow_the_cache_wait_and_give_the_same_text(make):
    engine = make(n_blocks=40)  # eight sequences of 32 blocks want 256
    handles = [engine.submit(Request([i] * (3 + 9 * i), SamplingParams(seed=i))) for i in range(8)]
    seen = []
    scorer = engine.submit(Request([9] * 128, visit=lambda at, rows: seen.append((at, len(rows)))))
    for i, handle in enumerate(handles):
        n = 128 - (3 + 9 * i)
        tokens = [event.token for event in handle]
        assert tokens == expected([i] * (3 + 9 * i), SamplingParams(), i, n)
    assert list(scorer) == []
    assert sum(n for _, n in seen) == 128
    assert [at for at, _ in seen] == list(np.cumsum([0, *(n for _, n in seen[:-1])]))
    batches = engine.runner.batches
    assert max(len(b.context_lens) for b in batches) >= 3  # they did run side by side
    assert engine.counters.preemptions > 0


def test_sequences_share_a_pass_and_a_long_prompt_does_not_stop_the_others(make):
    gate = threading.Event()
    engine = make(before=lambda batch: gate.wait(10))
    first = engine.submit(Request([1], SamplingParams(max_tokens=12)))
    others = [
        engine.submit(Request([2] * 90, SamplingParams(max_tokens=2))),
        engine.submit(Request([3], SamplingParams(max_tokens=3))),
    ]
    gate.set()
    assert len(list(first)) == 12
    assert [len(list(h)) for h in others] == [2, 3]
    mixed = [b for b in engine.runner.batches if len(b.tokens) == 16 and len(b.context_lens) >= 2]
    assert len(mixed) >= 5
    assert all(b.starts[1] == 1 for b in mixed)  # the decoding sequence has its token in each


def test_admission_is_first_come_first_served(make):
    gate = threading.Event()
    engine = make(before=lambda batch: gate.wait(10), n_blocks=10, n_ctx=40)
    wide = [engine.submit(Request([i] * 24, SamplingParams(max_tokens=5))) for i in (1, 2)]
    narrow = engine.submit(Request([3], SamplingParams(max_tokens=2)))
    gate.set()
    for handle in (*wide, narrow):
        list(handle)
    assert wide[0].admitted < wide[1].admitted <= narrow.admitted


def wait_for(condition):
    deadline = time.perf_counter() + 10
    while not condition():
        assert time.perf_counter() < deadline, "waited too long"
        time.sleep(0.001)


@pytest.mark.parametrize("prompt", [1, 100])
def test_cancel_ends_a_running_pass_at_once(make, prompt):
    engine = make(before=lambda batch: engine.runner.cancelled.wait(10))
    handle = engine.submit(Request([1] * prompt))
    wait_for(lambda: engine.runner.batches)
    began = time.perf_counter()
    handle.cancel()
    assert list(handle) == []
    assert handle.finish.reason == "cancelled"
    assert time.perf_counter() - began < 1
    assert len(engine.runner.batches) == 1


def test_a_handle_that_nobody_holds_is_cancelled(make):
    engine = make(lambda history: peak(65), before=lambda batch: time.sleep(0.01))
    engine.submit(Request([1]))
    deadline = time.perf_counter() + 5
    while not engine._core.scheduler.idle and time.perf_counter() < deadline:
        time.sleep(0.01)
    assert engine._core.scheduler.idle


def test_cancel_by_the_garbage_collector_does_not_wait_for_its_own_thread(make):
    engine = make(lambda history: peak(65))
    handle = engine.submit(Request([1]))

    def collected_within():
        with engine._core._pass:
            handle.cancel()

    thread = threading.Thread(target=collected_within, daemon=True)
    thread.start()
    thread.join(2)
    assert not thread.is_alive()


def test_cancel_leaves_others_of_the_pass_alone(make):
    gate = threading.Event()
    engine = make(before=lambda batch: len(engine.runner.batches) < 7 or gate.wait(10))
    first = engine.submit(Request([1], SamplingParams(max_tokens=90)))
    second = engine.submit(Request([2], SamplingParams(max_tokens=100)))
    wait_for(lambda: len(engine.runner.batches) == 7)
    second.cancel()
    assert not engine.runner.cancelled.is_set()
    gate.set()
    assert len(list(first)) == 90
    assert len(list(second)) < 10
    assert second.finish.reason == "cancelled"


def test_cancel_while_waiting_for_blocks(make):
    gate = threading.Event()
    engine = make(before=lambda batch: gate.wait(10), n_blocks=10, n_ctx=40)
    running = engine.submit(Request([1] * 5))
    waiting = engine.submit(Request([2] * 5))
    waiting.cancel()
    gate.set()
    assert list(waiting) == []
    assert len(list(running)) == 35


def test_a_failing_pass_ends_its_sequences_and_nothing_else(make):
    def before(batch):
        if 7 in batch.tokens:
            raise ZeroDivisionError("kernel")

    engine = make(before=before)
    for _ in range(3):
        with pytest.raises(DeviceError, match="ZeroDivisionError"):
            run(engine, [7, 7])
        assert run(engine, [1], SamplingParams(max_tokens=4, seed=1))[1] == "length"


def test_a_pass_that_is_cancelled_for_no_reason_is_an_error(make):
    def before(batch):
        raise CancelledError("out of the blue")

    with pytest.raises(CancelledError, match="blue"):
        run(make(before=before), [1])


@pytest.mark.parametrize("visit_from", [0, 1, 40, 127])
def test_visits_see_every_row_in_order_and_respect_the_limits(make, visit_from):
    tokens = [(5 * i) % 250 for i in range(128)]
    seen = []
    request = Request(
        tokens, visit=lambda at, rows: seen.append((at, rows.copy())), visit_from=visit_from
    )
    assert list(make().submit(request)) == []
    sizes = [len(rows) for _, rows in seen]
    assert [at for at, _ in seen] == list(np.cumsum([visit_from, *sizes[:-1]]))
    assert sum(sizes) == 128 - visit_from
    np.testing.assert_array_equal(seen[-1][1][-1], noise(tokens))
    np.testing.assert_array_equal(seen[0][1][0], noise(tokens[: visit_from + 1]))


def test_a_visitor_that_fails_gets_its_own_error(make):
    def visit(at, rows):
        raise KeyError("mine")

    engine = make()
    with pytest.raises(KeyError, match="mine"):
        list(engine.submit(Request([1, 2], visit=visit)))
    assert run(engine, [1], SamplingParams(max_tokens=1))[1] == "length"


def test_seeds(make):
    engine = make()
    first = engine.submit(Request([1], SamplingParams(max_tokens=30, temperature=2)))
    tokens = [e.token for e in first]
    again, _ = run(engine, [1], SamplingParams(max_tokens=30, temperature=2, seed=first.seed))
    other, _ = run(engine, [1], SamplingParams(max_tokens=30, temperature=2))
    assert tokens == again != other


def test_logprobs_on_request(make):
    engine = make(lambda history: np.zeros(VOCAB, np.float32))
    (event,) = engine.submit(Request([1], SamplingParams(max_tokens=1, logprobs=True)))
    assert event.logprob == pytest.approx(-math.log(VOCAB))
    (event,) = engine.submit(Request([1], SamplingParams(max_tokens=1)))
    assert event.logprob is None


def test_close_while_running_tells_those_who_wait(make):
    engine = make(before=lambda batch: engine.runner.cancelled.wait(10))
    handles = [engine.submit(Request([i])) for i in range(3)]
    errors = []

    def wait(handle):
        with pytest.raises(CancelledError, match="closed") as caught:
            list(handle)
        errors.append(caught.value)

    threads = [threading.Thread(target=wait, args=(h,)) for h in handles]
    for thread in threads:
        thread.start()
    wait_for(lambda: engine.runner.batches)
    began = time.perf_counter()
    engine.close()
    engine.close()
    for thread in threads:
        thread.join(5)
    assert len(errors) == 3
    assert time.perf_counter() - began < 2
    with pytest.raises(DeviceError, match="closed"):
        engine.submit(Request([1]))


def test_a_close_that_ctrl_c_interrupts_can_be_taken_up_again(make):
    go = threading.Event()
    engine = make(lambda history: peak(65), before=lambda batch: go.wait(10))
    handle = engine.submit(Request([1]))
    while not engine._core._in_pass:
        time.sleep(0.01)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        engine._core.close()
    threading.Timer(0.3, go.set).start()
    engine._core.close()
    assert go.is_set()
    assert engine.runner.closed == 1
    with pytest.raises(CancelledError):
        list(handle)


def test_an_engine_that_is_dropped_closes_itself():
    runner = ScriptedRunner(noise)
    engine = Engine(runner)
    thread = engine._core.thread
    gone = weakref.ref(engine)
    list(engine.submit(Request([1], SamplingParams(max_tokens=3))))
    del engine
    gc.collect()
    assert gone() is None
    thread.join(5)
    assert not thread.is_alive()
    assert runner.closed == 1


def test_a_dropped_engine_serves_a_handle_that_is_kept():
    handle = Engine(ScriptedRunner(noise)).submit(Request([1], SamplingParams(max_tokens=50)))
    gc.collect()
    assert len(list(handle)) == 50
