"""Caches that are saved and put back, and sequences that go on twice."""

import dataclasses
import threading
import time

import pytest
from scripted import END, LIMITS, ScriptedRunner, noise
from test_engine import expected, wait_for
from test_prefix import ids, make, params_of, run

from llama3jit.engine.cache import KvCache
from llama3jit.engine.sequence import Request, SamplingParams, SequenceState
from llama3jit.engine.snapshot import CacheSnapshot
from llama3jit.errors import DeviceError, InvalidArgumentError

__all__ = ["make"]
SIZE = LIMITS.block_tokens


@pytest.mark.parametrize("n", [1, 2, 4, 5, 8, 30])
def test_what_was_saved_is_found_in_another_cache(make, n):
    engine, other = make(), make()
    run(engine, ids(n), 1)
    snapshot = engine.save_cache(ids(n))
    assert list(snapshot.tokens) == ids(n)
    assert len(snapshot.blocks) == -(-n // SIZE)
    other.load_cache(snapshot)
    assert run(other, ids(n)) == n - 1
    assert run(other, [*ids(n), 9, 9]) == n


def test_saving_gives_what_there_is(make):
    engine = make()
    assert engine.save_cache(ids(9)) == CacheSnapshot([], [])
    run(engine, ids(9), 1)
    assert list(engine.save_cache([*ids(7), 255]).tokens) == ids(7)
    assert len(engine.save_cache(ids(30)).tokens) == 9
    silent = make(prefix_reuse=False)
    run(silent, ids(9))
    assert silent.save_cache(ids(9)) == CacheSnapshot([], [])
    silent.load_cache(engine.save_cache(ids(9)))
    assert run(silent, ids(9)) == 0


def test_loading_what_is_there_takes_no_blocks(make):
    engine = make()
    run(engine, ids(9), 1)
    snapshot = engine.save_cache(ids(9))
    before = engine.counters.blocks_cached
    engine.load_cache(snapshot)
    engine.load_cache(snapshot)
    assert engine.counters.blocks_cached == before == 3


def test_a_cache_takes_as_much_as_it_has_room_for(make):
    engine, small = make(), make(n_blocks=5, n_ctx=20)
    run(engine, ids(40), 1)
    small.load_cache(engine.save_cache(ids(40)))
    assert run(small, ids(19), 1) == 16  # there is no block for a copy of the fifth


def test_loading_beside_a_running_sequence_leaves_its_blocks_alone(make):
    gate = threading.Event()
    engine = make()
    run(engine, ids(40), 1)
    snapshot = engine.save_cache(ids(40))
    small = make(
        n_blocks=5, n_ctx=20, before=lambda batch: len(small.runner.batches) < 4 or gate.wait(10)
    )
    handle = small.submit(Request(ids(9, 5), params_of(11)))
    wait_for(lambda: len(small.runner.batches) == 4)
    loading = threading.Thread(target=small.load_cache, args=[snapshot])
    loading.start()
    gate.set()
    assert [e.token for e in handle] == expected(ids(9, 5), params_of(11), 1, 11)
    loading.join(10)
    assert not loading.is_alive()


def test_blocks_that_do_not_fit_their_tokens_are_refused(make):
    engine = make()
    run(engine, ids(9), 1)
    snapshot = engine.save_cache(ids(9))
    with pytest.raises(InvalidArgumentError, match=r"2 KV blocks .* 9 tokens: expected 3"):
        engine.load_cache(CacheSnapshot(snapshot.tokens, snapshot.blocks[:2]))


def test_a_write_that_fails_leaves_no_block_behind(make):
    engine, other = make(), make()
    run(engine, ids(9), 1)
    written = []

    def write_block(block, data):
        written.append(block)
        if len(written) == 2:
            raise DeviceError("no writes today")

    other.runner.write_block = write_block
    with pytest.raises(DeviceError, match="today"):
        other.load_cache(engine.save_cache(ids(9)))
    assert len(other.save_cache(ids(9)).tokens) == 4
    assert other.counters.blocks_free == LIMITS.n_blocks
    other.close()
    with pytest.raises(DeviceError, match="closed"):
        other.save_cache([1])


def test_loading_does_not_evict_what_is_loaded_already(make):
    engine, small = make(), make(n_blocks=5, n_ctx=20)
    run(engine, ids(20), 1)
    run(small, ids(4), 1)
    run(small, ids(16, 1), 1)  # now the block of the first is the oldest
    small.load_cache(engine.save_cache(ids(20)))
    assert run(small, ids(19), 1) == 16


def of_blocks(n_blocks):
    return KvCache(ScriptedRunner(noise, dataclasses.replace(LIMITS, n_blocks=n_blocks)), True)


def taken(cache, tokens):
    """A sequence that has blocks, and how many of its tokens were found."""
    sequence = SequenceState(Request(tokens), 0, 0.0, tokens, LIMITS.n_ctx, 0)
    assert cache.take(sequence, len(tokens) - 1, 0)
    found, sequence.computed = sequence.computed, len(tokens)
    return sequence, found


def test_of_two_that_hold_the_same_the_second_is_found_when_the_first_is_gone():
    cache = of_blocks(4)
    (first, _), (second, found) = taken(cache, ids(8)), taken(cache, ids(8))
    assert found == 0
    cache.note(first)
    cache.note(second)
    cache.release(first, keep=True)
    other, _ = taken(cache, ids(8, 1))  # takes the blocks of the first
    cache.release(second, keep=True)
    cache.release(other, keep=False)
    assert taken(cache, ids(8))[1] == 7


def test_what_holds_the_same_counts_as_used_by_both():
    cache = of_blocks(6)
    (first, _), (second, _), (other, _) = (taken(cache, t) for t in (ids(8), ids(8), ids(4, 1)))
    for sequence in (first, other, second):
        cache.release(sequence, keep=True)
    assert cache.pool.n_cached == 3
    taken(cache, ids(15, 2))  # three free blocks, and the oldest
    assert list(cache.save(ids(8)).tokens) == ids(8)
    assert list(cache.save(ids(4, 1)).tokens) == []


def test_a_part_that_another_block_holds_too_is_given_up(make):
    engine = make()
    run(engine, ids(6), 1)
    assert engine.counters.blocks_cached == 2
    run(engine, ids(16), 1)
    assert engine.counters.blocks_cached == 4
    run(engine, ids(7), 1)
    assert engine.counters.blocks_cached == 4


def held_up(make, at, **changes):
    """An engine that stops in pass `at` until the gate opens."""
    gate = threading.Event()
    engine = make(before=lambda batch: len(engine.runner.batches) != at or gate.wait(10), **changes)
    return engine, gate


def fork_within_pass(engine, gate, *given, **named):
    """Ask for a fork while a pass is held up, and let go of it."""
    found = []

    def ask():
        try:
            found.append(engine.fork(*given, **named))
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    wait_for(lambda: engine._core._calls)
    gate.set()
    thread.join(10)
    return found[0]


@pytest.mark.parametrize("reuse", [True, False])
@pytest.mark.parametrize("at", [1, 2, 3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("n", [33, 6])
def test_a_fork_in_each_phase_goes_on_like_its_parent_and_on_its_own(make, at, n, reuse):
    """A prompt of 33 tokens takes three passes, then there is one for each token."""
    engine, gate = held_up(make, at, prefix_reuse=reuse)
    params, other = params_of(12, 1), params_of(15, 2)
    parent = engine.submit(Request(ids(n), params, frozenset({END})))
    wait_for(lambda: len(engine.runner.batches) == at)
    fork = fork_within_pass(engine, gate, parent, other)
    again = [e.token for e in parent]
    assert again == expected(ids(n), params, 1, 12)
    before = list(fork.forked_tokens)
    assert before == again[: len(before)]
    assert len(before) == max(0, at - (3 if n == 33 else 1) + 1)
    want = [*ids(n), *before]
    for step in range(len(before), 15):
        want += [expected(want, other, 2, 1)[0] if step == 0 else sample_at(want, other, step)]
    assert [e.token for e in fork] == want[n + len(before) :]
    assert fork.finish.reason == "length"
    if n == 6:  # in the cache already: nothing but its own tokens was computed for it
        tokens = sum(len(b.tokens) for b in engine.runner.batches)
        assert tokens == n + 11 + 14 - len(before) + 1


def sample_at(tokens, params, step):
    from llama3jit.engine.sampler import sample

    return sample(noise(tokens), params, 2, step)


def test_a_fork_with_the_same_seed_gives_the_same_text(make):
    engine, gate = held_up(make, 6)
    parent = engine.submit(Request(ids(5), params_of(20)))
    wait_for(lambda: len(engine.runner.batches) == 6)
    fork = fork_within_pass(engine, gate, parent, params_of(20), seed=parent.seed)
    tokens = [e.token for e in parent]
    assert [*fork.forked_tokens, *(e.token for e in fork)] == tokens
    assert fork.seed == parent.seed


def test_forks_of_forks_in_a_cache_that_cannot_hold_them(make):
    """They share what they can, wait their turn, and each is what it would be alone."""
    engine = make(before=lambda batch: time.sleep(0.005), n_blocks=14, n_ctx=56)
    parent = engine.submit(Request(ids(20), params_of(30)))
    handles = [parent]
    for _ in range(7):
        handles.append(engine.fork(handles[-1], params_of(30), seed=1))
    whole = expected(ids(20), params_of(30), 1, 30)
    for handle in handles:
        assert [*handle.forked_tokens, *(e.token for e in handle)] == whole
    assert engine.counters.preemptions > 0


def test_a_fork_of_one_that_waits_waits_too(make):
    engine, gate = held_up(make, 1, max_sequences=1)
    first = engine.submit(Request(ids(5), params_of(4)))
    wait_for(lambda: len(engine.runner.batches) == 1)
    waiting = engine.submit(Request(ids(7), params_of(4)))
    fork = fork_within_pass(engine, gate, waiting, params_of(4, 9))
    assert fork.forked_tokens == ()
    for handle, n, seed in ((first, 5, 1), (waiting, 7, 1), (fork, 7, 9)):
        assert [e.token for e in handle] == expected(ids(n), params_of(4), seed, 4)
    assert fork.prefix_tokens == 6


def test_what_cannot_be_forked_says_why(make):
    engine = make()
    handle = engine.submit(Request(ids(5), params_of(4)))
    list(handle)
    with pytest.raises(InvalidArgumentError, match="over"):
        engine.fork(handle, params_of(4))
    with pytest.raises(InvalidArgumentError, match="999"):
        engine.fork(handle, SamplingParams(logit_bias={999: 1.0}))
    other, gate = held_up(make, 5)
    handle = other.submit(Request(ids(5), params_of(20)))
    wait_for(lambda: len(other.runner.batches) == 5)
    error = fork_within_pass(other, gate, handle, params_of(5))
    assert "max_tokens is 5, and 5 tokens" in str(error)
    visited, gate = held_up(make, 1)
    handle = visited.submit(Request(ids(20), visit=lambda at, rows: None))
    wait_for(lambda: visited.runner.batches)
    assert "visited" in str(fork_within_pass(visited, gate, handle, params_of(5)))


def test_nothing_is_asked_of_the_engine_from_within_a_pass(make):
    engine = make()
    caught = []

    def processor(tokens, logits):
        with pytest.raises(InvalidArgumentError, match="within a forward pass") as error:
            engine.save_cache([1])
        caught.append(error.value)

    list(engine.submit(Request([1], params_of(2), processors=(processor,))))
    assert len(caught) == 2


def test_a_fork_that_fails_holds_no_blocks(make):
    engine, gate = held_up(make, 4)
    parent = engine.submit(Request(ids(6), params_of(12)))
    wait_for(lambda: len(engine.runner.batches) == 4)

    def copy_block(source, target):
        raise DeviceError("no copies today")

    engine.runner.copy_block = copy_block
    assert "today" in str(fork_within_pass(engine, gate, parent, params_of(15)))
    assert [e.token for e in parent] == expected(ids(6), params_of(12), 1, 12)
