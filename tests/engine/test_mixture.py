"""Many sequences that join and leave at random in a cache that holds few: each is what it would be
alone, and no block is lost."""

import random
import threading
import time
from collections import Counter

import pytest
from scripted import END, LIMITS, noise
from test_engine import wait_for
from test_prefix import make

from llama3jit.engine.sequence import Request, SamplingParams
from llama3jit.errors import DeviceError, InvalidArgumentError

__all__ = ["make"]
N_CTX = 64
# Two sequences of n_ctx tokens, to the block.
TWO = {"n_blocks": 2 * N_CTX // LIMITS.block_tokens, "n_ctx": N_CTX}
ENDS = frozenset({END})
SAMPLERS = [
    {"temperature": 0},
    {"temperature": 1.5},
    {"top_k": 5},
    {"top_k": 0, "top_p": 0.7},
    {"min_p": 0.2, "typical_p": 0.9},
    {"mirostat_mode": 2, "mirostat_tau": 3.0},
    {"repeat_penalty": 1.4, "frequency_penalty": 0.5},
    {"dry_multiplier": 1.0, "xtc_probability": 0.5},
    {"logprobs": True, "dynatemp_range": 0.5},
    {"logit_bias": {7: 4.0}, "min_tokens": 3},
]
SYSTEM = [17] * 11  # what half of the prompts begin with


def requests(seed, count):
    chance = random.Random(seed)
    made = []
    for i in range(count):
        prompt = [chance.randrange(256) for _ in range(chance.choice([1, 3, 8, 21, 40]))]
        prompt = [*SYSTEM, *prompt] if i % 2 else prompt
        n = chance.choice([1, 4, 12, None])
        params = SamplingParams(max_tokens=n, seed=i, **SAMPLERS[i % len(SAMPLERS)])
        made.append(Request(prompt, params, ENDS))
    return made


def tokens_of(handle):
    return [event.token for event in handle]


@pytest.fixture(scope="module")
def alone():
    """Requests, and what each gives alone in a cache that remembers nothing."""
    from scripted import ScriptedRunner

    from llama3jit.engine.engine import Engine

    made = requests(0, 64)
    limits = LIMITS.__class__(**{n: getattr(LIMITS, n) for n in LIMITS.__slots__} | TWO)
    engine = Engine(ScriptedRunner(noise, limits), prefix_reuse=False)
    texts = [tokens_of(engine.submit(request)) for request in made]
    engine.close()
    return made, texts


@pytest.mark.parametrize("leading", [0, 64])
@pytest.mark.parametrize("reuse", [True, False])
@pytest.mark.parametrize("seed", [1, 2])
def test_sixty_four_sequences_in_a_cache_for_two(make, alone, seed, reuse, leading):
    engine = make(prefix_reuse=reuse, **TWO)
    engine.runner.n_leading = leading
    made, texts = alone
    found = {}
    chance = random.Random(seed)
    order = chance.sample(range(64), 64)

    def work(part):
        for i in order[part::8]:
            time.sleep(random.Random(i).random() * 0.004)
            found[i] = tokens_of(engine.submit(made[i]))

    in_threads(work, 8)
    assert [i for i in range(64) if found[i] != texts[i]] == []
    counters = engine.counters
    assert counters.preemptions > 0
    assert counters.finished == 64
    assert (counters.prefix_tokens > 100) is reuse
    engine._core.scheduler.pool.check([])
    assert counters.blocks_free == TWO["n_blocks"]


def test_a_storm_of_cancels_forks_and_failures(make, alone):
    """Sequences are left, cancelled in any phase and forked, and some passes fail; what is not
    lost by that is right."""
    made, texts = alone
    fails = random.Random(5)

    def before(batch):
        if fails.random() < 0.01:
            raise DeviceError("now and then")

    engine = make(before=before, **TWO)
    done = Counter()
    end = time.monotonic() + 4

    def work(part):
        chance = random.Random(part)
        while time.monotonic() < end:
            i = chance.randrange(64)
            handle = engine.submit(made[i])
            asked = chance.choice(["all", "some", "none", "fork"])
            found = []
            try:
                if asked == "none":
                    time.sleep(chance.random() * 0.003)
                    handle.cancel()
                for event in handle:
                    found.append(event.token)
                    if asked == "some" and len(found) == 2:
                        handle.cancel()
                    if asked == "fork" and len(found) == 2:
                        fork = engine.fork(handle, made[i].params)
                        found = [*fork.forked_tokens, *tokens_of(fork)]
                        handle = fork
                        break
            except DeviceError:
                asked = "failed"
            except InvalidArgumentError:  # it was over before it could be forked
                continue
            whole = asked in ("all", "fork") and handle.finish.reason != "cancelled"
            assert found == texts[i] if whole else found == texts[i][: len(found)]
            done[asked] += 1

    in_threads(work, 8)
    wait_for(lambda: engine._core.scheduler.idle)
    engine._core.scheduler.pool.check([])
    assert len(done) == 5
    assert engine.counters.preemptions > 0
    engine.runner.before = None
    assert tokens_of(engine.submit(made[3])) == texts[3]


def in_threads(work, count):
    errors = []

    def guarded(part):
        try:
            work(part)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=[part]) for part in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


@pytest.mark.parametrize("phase", ["queued", "prefill", "decode"])
def test_a_cancel_in_each_phase_ends_it_before_the_next_pass(make, phase):
    gate = threading.Event()
    stop_at = {"queued": 1, "prefill": 2, "decode": 9}[phase]
    engine = make(
        before=lambda batch: len(engine.runner.batches) != stop_at or gate.wait(10),
        max_sequences=1,
        **TWO,
    )
    first = engine.submit(Request([1] * 50, SamplingParams(seed=1, max_tokens=12)))
    handle = engine.submit(Request([2] * 5)) if phase == "queued" else first
    wait_for(lambda: len(engine.runner.batches) == stop_at)
    handle.cancel()
    gate.set()
    assert len(tokens_of(handle)) == (5 if phase == "decode" else 0)
    assert handle.finish.reason == "cancelled"
    if phase == "queued":
        assert len(tokens_of(first)) == 12
    else:
        assert len(engine.runner.batches) == stop_at


def test_a_cancel_of_one_that_was_preempted(make):
    gate = threading.Event()
    engine = make(n_blocks=24, n_ctx=64)
    stopped = []

    def before(batch):
        if engine.counters.preemptions and not stopped:
            stopped.append(len(batch.tokens))
            gate.wait(10)

    engine.runner.before = before
    handles = [engine.submit(Request([i] * 30, SamplingParams(seed=i))) for i in (1, 2)]
    wait_for(lambda: stopped)
    assert stopped == [1]
    handles[1].cancel()
    gate.set()
    assert len(tokens_of(handles[0])) == 34
    assert 0 < len(tokens_of(handles[1])) < 34
    assert engine.counters.cancelled == 1


def test_nobody_waits_for_ever_beside_a_stream_of_others(make):
    """One that needs half of the cache gets its turn while small ones come without end."""
    engine = make(**TWO)
    stop = threading.Event()

    def small(part):
        while not stop.is_set():
            request = Request([part] * 9, SamplingParams(max_tokens=8, seed=part))
            assert len(tokens_of(engine.submit(request))) == 8

    def large(part):
        try:
            for _ in range(5):
                handle = engine.submit(Request([99] * 60, SamplingParams(seed=1)))
                assert len(tokens_of(handle)) == 4
        finally:
            stop.set()

    in_threads(lambda part: small(part) if part else large(part), 7)


def test_long_prompts_never_keep_decoding_ones_from_a_pass(make):
    engine = make(before=lambda batch: time.sleep(0.001), n_ctx=128)
    first = engine.submit(Request([1], SamplingParams(max_tokens=60, seed=1)))
    wait_for(lambda: len(engine.runner.batches) >= 2)
    long = [
        engine.submit(Request([i] * 100, SamplingParams(max_tokens=2, seed=1))) for i in range(2, 7)
    ]
    assert len(tokens_of(first)) == 60
    assert [len(tokens_of(handle)) for handle in long] == [2] * 5
    batches = engine.runner.batches
    assert len([b for b in batches if 0 in b.positions[:1]]) == 1
    ends = next(i for i, b in enumerate(batches) if int(b.positions[0]) >= 59)
    assert [int(b.positions[0]) for b in batches[: ends + 1]] == list(range(ends + 1))
    assert max(len(b.tokens) for b in batches) == 16
