"""What is found in the cache gives the bits that computing it again gives."""

import time

import numpy as np
import pytest
from driving import ids_of, opened
from tiny_model import MIXED, tiny_model

from llama3jit.engine.engine import Engine
from llama3jit.engine.sequence import Request, SamplingParams

CASES = [
    ("cpu", "fast", "f16"),
    ("cpu", "exact", "f32"),
    ("cpu", "fast", "q8_0"),
    ("cpu", "exact", "q4_0"),
    ("reference", "exact", "f16"),
]


@pytest.fixture(scope="module", params=CASES, ids=str)
def make(request, tmp_path_factory):
    device, precision, kv_dtype = request.param
    path = tmp_path_factory.mktemp("m") / "m.gguf"
    tiny = tiny_model(path, seed=4, formats=MIXED, head_dim=32)

    def build(prefix_reuse=True, **options):
        options = {"precision": precision, "kv_dtype": kv_dtype, "n_ctx": 160} | options
        return Engine(opened(tiny, device, **options), prefix_reuse=prefix_reuse)

    return build


@pytest.fixture(scope="module")
def misses(make):
    """Logits of the last tokens of a text, and its continuation, by an engine that remembers
    nothing."""
    engine = make(prefix_reuse=False)
    cache = {}

    def of(tokens, first):
        key = *tokens, first
        if key not in cache:
            cache[key] = logits_of(engine, tokens, first)[0]
        return cache[key]

    yield of
    engine.close()


def logits_of(engine, tokens, first):
    """Logits from position `first` on, and how many tokens were in the cache."""
    rows = []
    handle = engine.submit(
        Request(tokens, visit=lambda at, some: rows.extend(some.copy()), visit_from=first)
    )
    assert list(handle) == []
    return np.array(rows), handle.prefix_tokens


def same(found, expected):
    assert np.isfinite(found).all()
    return np.array_equal(found.view(np.uint32), expected.view(np.uint32))


def test_hits_are_misses_to_the_bit(make, misses):
    """The same again; a beginning; parting in the second block, of which a copy is made; a
    continuation of what was generated."""
    engine = make()
    tokens = ids_of(150)
    texts = [
        (tokens, 149, 0),
        (tokens, 149, 149),
        (tokens, 60, 60),
        (tokens[:128], 127, 127),
        ([*tokens[:70], *ids_of(30, 1)], 80, 70),
        ([*tokens[:72], *ids_of(30, 2)], 101, 72),
        ([*tokens[:130], *ids_of(5, 3)], 131, 130),
        ([*tokens[:70], *ids_of(30, 1)], 99, 99),
    ]
    for text, first, n_cached in texts:
        found, n = logits_of(engine, text, first)
        assert n == n_cached
        assert same(found, misses(text, first))
    params = SamplingParams(max_tokens=20, seed=3)
    reply = [event.token for event in engine.submit(Request(tokens[:90], params))]
    found, n = logits_of(engine, [*tokens[:90], *reply, 5, 6], 109)
    assert n == 109  # all of the reply but its last token
    assert same(found, misses([*tokens[:90], *reply, 5, 6], 109))
    engine._core.scheduler.pool.check([])
    engine.close()


def test_blocks_that_were_saved_are_hits_too(make, misses):
    engine, other = make(), make()
    tokens = ids_of(150)
    logits_of(engine, tokens, 149)
    other.load_cache(engine.save_cache(tokens))
    for text, first in ((tokens, 149), ([*tokens[:140], 7, 8], 140)):
        found, n = logits_of(other, text, first)
        assert n == first
        assert same(found, misses(text, first))
    other.close()
    engine.close()


def test_forks_and_crowds_give_the_texts_of_each_alone(make):
    """A sequence and its forks, which part within a block, beside others."""
    alone, engine = make(prefix_reuse=False), make()
    forward = engine._core.runner.forward

    def slowed(batch):
        time.sleep(0.003)  # so that there is time to fork it
        return forward(batch)

    engine._core.runner.forward = slowed
    ask = SamplingParams(max_tokens=60, seed=1)
    forked = SamplingParams(max_tokens=60, seed=2)
    prompt = ids_of(40)
    whole = tokens_of(alone.submit(Request(prompt, ask)))
    parent = engine.submit(Request(prompt, ask))
    other = engine.submit(Request(ids_of(33, 5), ask))
    events = iter(parent)
    first = [next(events).token for _ in range(3)]
    forks = [engine.fork(parent, forked) for _ in range(3)]
    assert [*first, *(event.token for event in events)] == whole
    assert tokens_of(other) == tokens_of(alone.submit(Request(ids_of(33, 5), ask)))
    for fork in forks:
        n = len(fork.forked_tokens)
        assert list(fork.forked_tokens) == whole[:n]
        tokens = [*fork.forked_tokens, *tokens_of(fork)]
        for i in (n, 30, 59):
            # The same step alone: the request has these tokens as its own and chooses the next.
            assert tokens[i] == next_token(alone, prompt, tokens[:i], forked)
    engine.close()
    alone.close()


def tokens_of(handle):
    return [event.token for event in handle]


def next_token(engine, prompt, reply, params):
    """What is chosen after a reply, by the logits of that place and the random numbers of it."""
    from llama3jit.engine.sampler import sample

    rows, _ = logits_of(engine, [*prompt, *reply], len(prompt) + len(reply) - 1)
    return sample(rows[0], params, params.seed, len(reply))
