"""What sequences leave in the cache, and others find there, on a runner that reads it as it is."""

import dataclasses
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import END, LIMITS, ScriptedRunner, noise
from test_engine import expected, wait_for

from llama3jit.engine.engine import Engine
from llama3jit.engine.prefix import ROOT, PrefixIndex, digest_of
from llama3jit.engine.sequence import Request, SamplingParams
from llama3jit.errors import DeviceError

SIZE = LIMITS.block_tokens


@pytest.fixture
def make():
    """An engine on a runner; afterwards nobody holds a block."""
    opened = []

    def build(script=noise, before=None, prefix_reuse=True, **changes):
        runner = ScriptedRunner(script, dataclasses.replace(LIMITS, **changes), before)
        opened.append(engine := Engine(runner, prefix_reuse=prefix_reuse))
        engine.runner = runner
        return engine

    yield build
    for engine in opened:
        pool = engine._core.scheduler.pool
        engine.close()
        pool.check([])


def params_of(n, seed=1):
    return SamplingParams(max_tokens=n, seed=seed)


def run(engine, tokens, n=3, seed=1):
    """Run a prompt, check its text, and say how much of it was in the cache."""
    engine.runner.batches.clear()
    handle = engine.submit(Request(tokens, params_of(n, seed), frozenset({END})))
    assert [e.token for e in handle] == expected(tokens, params_of(n, seed), seed, n)
    computed = sum(len(b.tokens) for b in engine.runner.batches)
    assert computed == len(tokens) + n - 1 - handle.prefix_tokens
    return handle.prefix_tokens


def ids(n, first=0):
    return [(first + 7 * i) % 256 for i in range(n)]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 9, 30, 32, 33])
def test_the_same_prompt_twice_computes_its_last_token(make, n):
    engine = make()
    assert run(engine, ids(n)) == 0
    assert run(engine, ids(n)) == n - 1
    assert run(engine, ids(n), 5, seed=7) == n - 1


@pytest.mark.parametrize("n", range(1, 14))
def test_a_strict_prefix_of_a_cached_prompt(make, n):
    engine = make()
    run(engine, ids(13))
    assert run(engine, ids(n)) == n - 1


def test_a_conversation_goes_on_from_its_last_reply(make):
    engine = make()
    tokens = ids(5)
    for turn in range(6):
        handle = engine.submit(Request(tokens, params_of(6, turn)))
        reply = [e.token for e in handle]
        assert reply == expected(tokens, params_of(6, turn), turn, 6)
        # All but the last token, which was chosen and never read, and what was just added.
        assert handle.prefix_tokens == (0 if turn == 0 else len(tokens) - 4)
        tokens = [*tokens, *reply, 40 + turn, 50 + turn, 60 + turn]


@pytest.mark.parametrize("parting", range(9, 13))
def test_parting_in_the_last_block(make, parting):
    engine = make()
    run(engine, ids(14))
    for tail in ([255], [254, 3], [253, *ids(20, 3)]):
        assert run(engine, [*ids(parting), *tail]) == parting
    assert run(engine, ids(14)) == 13


def test_a_prompt_that_differs_at_once_finds_nothing(make):
    engine = make()
    run(engine, ids(20))
    assert run(engine, [254, *ids(20)[1:]]) == 0
    assert run(engine, ids(20)[4:]) == 0  # the same tokens at other positions


def test_without_reuse_nothing_is_found(make):
    engine = make(prefix_reuse=False)
    run(engine, ids(20))
    assert run(engine, ids(20)) == 0
    assert engine.counters.blocks_cached == 0


def test_what_was_used_least_recently_is_evicted_first(make):
    """A pool of 10 blocks: three prompts of three blocks leave one free."""
    engine = make(n_blocks=10, n_ctx=40)
    prompts = [ids(10, first) for first in (0, 1, 2)]
    for prompt in prompts:
        run(engine, prompt, 2)
    assert engine.counters.blocks_cached == 9
    assert run(engine, prompts[0], 2) == 9  # now the second is the oldest, the fresh block is used
    assert run(engine, ids(14, 3), 2) == 0  # takes 4 blocks: of the second, from its end, and one
    assert run(engine, prompts[0], 2) == 9
    assert run(engine, prompts[2], 2) >= 4
    assert run(engine, prompts[1], 2) == 0


def test_of_one_prompt_the_last_blocks_go_first(make):
    engine = make(n_blocks=8, n_ctx=32)
    run(engine, ids(24), 2)  # six blocks, and a seventh with one token
    run(engine, ids(8, 1), 2)  # takes the free one, the seventh and the sixth
    assert run(engine, ids(24), 2) == 20


def test_a_running_sequence_shares_its_full_blocks(make):
    gate = threading.Event()
    engine = make(before=lambda batch: len(engine.runner.batches) < 3 or gate.wait(10))
    first = engine.submit(Request(ids(18), params_of(9)))
    wait_for(lambda: len(engine.runner.batches) == 3)
    second = engine.submit(Request(ids(18), params_of(9, 2)))
    gate.set()
    for seed, handle in ((1, first), (2, second)):
        assert [e.token for e in handle] == expected(ids(18), params_of(9), seed, 9)
    assert second.prefix_tokens == 16


def test_what_was_computed_before_a_cancel_is_kept(make):
    gate = threading.Event()
    engine = make(before=lambda batch: len(engine.runner.batches) < 3 or gate.wait(10))
    handle = engine.submit(Request(ids(60), params_of(9)))
    wait_for(lambda: len(engine.runner.batches) == 3)
    handle.cancel()
    gate.set()
    assert list(handle) == []
    engine.runner.before = None
    assert run(engine, ids(60)) == 32  # the third chunk was under way


def test_what_a_failing_pass_wrote_is_not_found(make):
    def before(batch):
        if 255 in batch.tokens:
            engine.runner._cache[batch.block_tables[0]] = 99
            raise ZeroDivisionError

    engine = make(before=before)
    with pytest.raises(DeviceError):
        list(engine.submit(Request([*ids(20), 255], params_of(2))))
    engine.runner.before = None
    assert run(engine, ids(20)) == 0


def test_a_copy_that_fails_ends_its_sequence_alone(make):
    engine = make()
    run(engine, ids(10))

    def copy_block(source, target):
        raise DeviceError("no copies today")

    engine.runner.copy_block = copy_block
    with pytest.raises(DeviceError, match="today"):
        list(engine.submit(Request(ids(11), params_of(2))))
    engine._core.scheduler.pool.check([])
    assert run(engine, [200, 201]) == 0


@pytest.mark.parametrize("visit_from", [0, 3, 17, 29])
def test_visits_see_their_rows_whatever_is_cached(make, visit_from):
    engine = make()
    run(engine, ids(30))
    seen = []
    request = Request(
        ids(30), visit=lambda at, rows: seen.append((at, len(rows))), visit_from=visit_from
    )
    handle = engine.submit(request)
    assert list(handle) == []
    assert handle.prefix_tokens == visit_from
    assert sum(n for _, n in seen) == 30 - visit_from


def test_in_the_smallest_cache_the_block_to_copy_may_be_the_one_to_use(make):
    """All blocks are needed: the part is not copied, and the text is the same."""
    engine = make(n_blocks=4, n_ctx=16)
    run(engine, ids(15), 1)
    assert run(engine, ids(14), 2) == 12
    assert run(engine, [*ids(13), 9, 9], 1) == 12


def test_counters(make):
    engine = make()
    run(engine, ids(10))
    run(engine, ids(10))
    found = engine.counters
    assert (found.steps, found.tokens_computed, found.prefix_tokens) == (6, 12 + 3, 9)
    assert (found.finished, found.cancelled, found.failed, found.preemptions) == (2, 0, 0, 0)
    assert (found.blocks_free, found.blocks_cached) == (LIMITS.n_blocks, 3)
    assert (found.running, found.waiting) == (0, 0)


TEXTS = st.lists(st.integers(0, 1), min_size=1, max_size=11)


@settings(max_examples=200, deadline=None)
@given(st.lists(TEXTS, max_size=8), TEXTS, st.integers(0, 12))
def test_the_index_finds_the_longest_beginning(texts, wanted, limit):
    """Beside a search through everything that was put in."""
    size, index = 3, PrefixIndex(3)
    block, full = 0, set()
    held = []  # the tokens of each block with all before, by block
    for text in texts:
        before = ROOT
        for first in range(0, len(text), size):
            tokens = text[first : first + size]
            digest = digest_of(before, tokens) if len(tokens) == size else None
            if digest not in full:
                index.add(block, before, tokens, digest)
                held.append((before, tokens, text[: first + size]))
                block += 1
            if digest:
                full.add(digest)
                before = digest
    found = index.find(wanted, min(limit, len(wanted)))
    n = len(found.blocks) * size + found.n_part
    for i, b in enumerate(found.blocks):
        assert held[b][2] == wanted[: (i + 1) * size]
    if found.n_part:
        assert held[found.part][2][:n] == wanted[:n]
    target = wanted[:limit]
    longest = max((common(text, target) for text in texts), default=0)
    assert n == longest
    for b in range(block):
        index.forget(b)
    assert index.find(wanted, len(wanted)).held == []
    assert not index._after


def common(a, b):
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )
