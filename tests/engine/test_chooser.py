"""What a sequence's choices depend on: biases, callables, grammars, mirostat, and its forks."""

import math

import numpy as np
import pytest

from llama3jit.engine.chooser import Chooser
from llama3jit.engine.engine import Engine
from llama3jit.engine.params import SamplingParams
from llama3jit.engine.sampler import sample
from llama3jit.engine.sequence import Request
from llama3jit.errors import InvalidArgumentError, NumericsError
from tests.scripted import END, LIMITS, VOCAB, ScriptedRunner, noise, replying

OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}


def row_of(seed, vocab=50):
    return np.random.default_rng(seed).standard_normal(vocab).astype(np.float32) * 3


def choose(params=None, *, logits, tokens=(1, 2, 3), step=0, seed=7, **request):
    chooser = Chooser(Request([1], params or SamplingParams(), **request), seed)
    return chooser.choose(logits, list(tokens), step)


def run(params, *, script=noise, prompt=(65, 66), limits=LIMITS, n_leading=0, **request):
    """The tokens of one request, and its finish."""
    runner = ScriptedRunner(script, limits)
    runner.n_leading = n_leading
    engine = Engine(runner)
    try:
        handle = engine.submit(Request(list(prompt), params, frozenset({END}), **request))
        return [event.token for event in handle], handle.finish
    finally:
        engine.close()


def test_defaults_choose_what_the_filters_and_a_draw_choose():
    for step in range(100):
        row = row_of(step)
        assert choose(logits=row, step=step).token == sample(row, SamplingParams(), 7, step)


def test_the_row_is_left_as_it_was():
    row = row_of(1)
    kept = row.copy()
    params = SamplingParams(
        repeat_penalty=2.0, dry_multiplier=1.0, logit_bias={3: 5.0}, mirostat_mode=2, min_tokens=2
    )
    choose(params, logits=row, tokens=[1, 2, 1, 2], processors=(lambda ids, x: x.fill(0),))
    assert (row == kept).all()


def test_a_bias_is_added_before_all_else():
    row = np.zeros(50, np.float32)
    greedy = {"temperature": 0}
    assert choose(SamplingParams(**greedy, logit_bias={31: 0.5}), logits=row).token == 31
    # Halved by the penalty after it, it loses to what was not penalised.
    row[40] = 3.0
    params = SamplingParams(**greedy, logit_bias={31: 5.0}, repeat_penalty=2.0)
    assert choose(params, logits=row, tokens=[31]).token == 40
    assert choose(params, logits=row, tokens=[30]).token == 31


def test_a_bias_of_minus_infinity_forbids():
    row = row_of(2)
    best = int(row.argmax())
    for filters in ({}, OFF, {"mirostat_mode": 2}, {"temperature": 0}):
        params = SamplingParams(**filters, logit_bias={best: -math.inf})
        drawn = {choose(params, logits=row, step=step).token for step in range(200)}
        assert best not in drawn
    everything = SamplingParams(logit_bias=dict.fromkeys(range(50), -math.inf))
    with pytest.raises(InvalidArgumentError, match="step 4: no token is left by logit_bias"):
        choose(everything, logits=row, step=4)


def test_few_that_are_allowed_need_no_sort_of_the_forbidden():
    row = np.full(200_000, -math.inf, np.float32)
    row[[5, 77_000]] = 1.0, 0.5
    drawn = {sample_of_forbidden(row, step) for step in range(60)}
    assert drawn == {5, 77_000}


def sample_of_forbidden(row, step):
    def processor(ids, logits):
        return row

    flat = np.zeros(len(row), np.float32)
    return choose(SamplingParams(), logits=flat, step=step, processors=(processor,)).token


def test_min_tokens_forbids_the_end_tokens_before():
    script = replying("hi", marker=66)
    assert run(SamplingParams(), script=script)[0] == list(b"hi")
    tokens, finish = run(SamplingParams(min_tokens=5, max_tokens=9), script=script)
    assert len(tokens) == 5
    assert finish.reason == "stop"


def test_logprobs_are_of_the_raw_logits():
    row = row_of(3)
    exact = row.astype(np.float64)
    expected = exact - math.log(np.exp(exact).sum())
    params = SamplingParams(
        temperature=0.2, repeat_penalty=1.5, logit_bias={4: 2.0}, logprobs=True, top_logprobs=5
    )
    choice = choose(params, logits=row)
    assert choice.logprob == pytest.approx(expected[choice.token], abs=1e-5)
    best = np.argsort(-row, kind="stable")[:5]
    assert [token for token, _ in choice.top_logprobs] == best.tolist()
    np.testing.assert_allclose([x for _, x in choice.top_logprobs], expected[best], atol=1e-5)


def test_top_logprobs_of_ties_and_of_a_whole_vocabulary():
    row = np.zeros(5, np.float32)
    row[3] = 1
    choice = choose(SamplingParams(logprobs=True, top_logprobs=9), logits=row)
    assert [token for token, _ in choice.top_logprobs] == [3, 0, 1, 2, 4]


def naive_mirostat(row, params, mu, number):
    """As llama.cpp has it: sort, cut where the surprise exceeds mu, draw, move mu."""
    weights = np.exp((row.astype(np.float64) - row.max()) / params.temperature)
    chances = weights / weights.sum()
    kept = [i for i in range(len(row)) if -math.log2(chances[i]) <= mu] or [int(row.argmax())]
    shares = chances[kept] / chances[kept].sum()
    at = min(int(np.searchsorted(np.cumsum(shares), number, side="right")), len(kept) - 1)
    return kept[at], mu - params.mirostat_eta * (-math.log2(shares[at]) - params.mirostat_tau)


@pytest.mark.parametrize("tau", [0.5, 3.0, 8.0])
def test_mirostat_is_the_plain_form_and_keeps_its_mu(tau):
    from llama3jit.engine.draws import uniform

    params = SamplingParams(mirostat_mode=2, mirostat_tau=tau, mirostat_eta=0.3, temperature=0.9)
    chooser = Chooser(Request([1], params), 5)
    mu = 2 * tau
    for step in range(300):
        row = row_of(step)
        expected, mu = naive_mirostat(row, params, mu, uniform(5, step))
        assert chooser.choose(row, [1], step).token == expected


def test_mirostat_reaches_its_surprise():
    params = SamplingParams(mirostat_mode=2, mirostat_tau=2.0, temperature=1.0)
    chooser = Chooser(Request([1], params), 1)
    surprises = []
    for step in range(600):
        row = row_of(step, 1000)
        token = chooser.choose(row, [1], step).token
        chances = np.exp(row.astype(np.float64))
        surprises.append(-math.log2(chances[token] / chances.sum()))
    assert np.mean(surprises[100:]) < 6  # the whole distribution has 8 bits and more


def test_a_fork_goes_on_from_the_state_and_leaves_it():
    params = SamplingParams(mirostat_mode=2, mirostat_eta=0.9, mirostat_tau=1.0, temperature=2.0)
    request = Request([1], params, constraint=Counting(9))
    chooser = Chooser(request, 5)
    for step in range(6):
        chooser.choose(row_of(step), [1], step)
    fork, other = chooser.fork(request, 5), chooser.fork(request, 6)
    ours = [chooser.choose(row_of(step), [1], step) for step in range(6, 30)]
    theirs = [other.choose(row_of(step), [1], step) for step in range(6, 30)]
    assert [fork.choose(row_of(step), [1], step) for step in range(6, 30)] == ours
    assert theirs != ours
    assert [choice.ends for choice in ours].index(True) == 2
    assert request.constraint.left == 9


class Counting:
    """Allows even tokens, so many times."""

    def __init__(self, left):
        self.left = left

    @property
    def finished(self):
        return self.left == 0

    def allow(self, logits):
        logits[1::2] = -math.inf

    def accept(self, token):
        assert token % 2 == 0
        self.left -= 1

    def copy(self):
        return Counting(self.left)


def test_a_constraint_holds_and_ends_the_sequence():
    tokens, finish = run(SamplingParams(seed=3), constraint=Counting(7))
    assert len(tokens) == 7
    assert not any(token % 2 for token in tokens)
    assert finish.reason == "stop"
    assert run(SamplingParams(max_tokens=3), constraint=Counting(7))[1].reason == "length"
    # The device's largest logits are not enough for it.
    assert run(SamplingParams(seed=3), constraint=Counting(7), n_leading=64)[0] == tokens


def test_a_processor_may_change_or_replace_the_logits():
    seen = []

    def only_seven(ids, logits):
        seen.append(ids.tolist())
        logits[:] = -math.inf
        logits[7] = 0

    def instead(ids, logits):
        other = np.full(len(logits), -50.0)  # f64
        other[9] = 1
        return other

    params = SamplingParams(max_tokens=3)
    assert run(params, processors=(only_seven,))[0] == [7, 7, 7]
    assert seen == [[65, 66], [65, 66, 7], [65, 66, 7, 7]]
    assert run(params, processors=(only_seven, instead))[0] == [9, 9, 9]


@pytest.mark.parametrize(
    ("processor", "error"),
    [
        (lambda ids, logits: logits[:5], InvalidArgumentError),
        (lambda ids, logits: logits.fill(math.nan), NumericsError),
        (lambda ids, logits: logits.fill(math.inf), NumericsError),
        (lambda ids, logits: logits.fill(-math.inf), InvalidArgumentError),
        (lambda ids, logits: "logits", ValueError),
        (lambda ids, logits: [].pop(), IndexError),
        (lambda ids, logits: exit(), InvalidArgumentError),
    ],
)
def test_what_a_processor_does_wrong_ends_its_request_alone(processor, error):
    engine = Engine(ScriptedRunner(noise))
    good = Request([65, 66], SamplingParams(max_tokens=20, seed=3))
    alone = [event.token for event in engine.submit(good)]
    other = engine.submit(good)
    bad = engine.submit(Request([70], SamplingParams(), processors=(processor,)))
    with pytest.raises(error):
        list(bad)
    assert [event.token for event in other] == alone
    engine.close()


def test_a_sampler_of_the_users_own():
    def second_best(logits, state):
        assert state.step == len(state.ids) - 2
        assert state.seed == 11
        assert state.rng.random() == state.rng.random()
        return np.argsort(-logits)[1]

    tokens, _ = run(SamplingParams(max_tokens=5, seed=11), sampler=second_best)
    history = [65, 66]
    for token in tokens:
        assert token == np.argsort(-noise(history))[1]
        history.append(token)


@pytest.mark.parametrize("token", [-1, VOCAB, 1.5, None, True, "a"])
def test_a_sampler_has_to_give_an_id(token):
    with pytest.raises(InvalidArgumentError, match=f"expected a token id from 0 to {VOCAB - 1}"):
        run(SamplingParams(), sampler=lambda logits, state: token)


def test_a_sampler_may_not_take_what_is_forbidden():
    params = SamplingParams(logit_bias={5: -math.inf})
    with pytest.raises(InvalidArgumentError, match="token 5, whose logit is -inf"):
        run(params, sampler=lambda logits, state: 5)


def test_stopping_criteria_see_the_last_token_and_its_logits():
    seen = []

    def third(ids, logits):
        seen.append((ids[-1], logits))
        return len(ids) == 5

    params = SamplingParams(temperature=0)
    tokens, finish = run(params, stopping=(lambda ids, logits: False, third))
    assert len(tokens) == 3
    assert finish.reason == "stop"
    for i, (token, logits) in enumerate(seen):
        assert token == tokens[i]
        assert (logits == noise([65, 66, *tokens[:i]])).all()


EVERY_KIND = [
    {},
    {"repeat_penalty": 1.3, "presence_penalty": 0.2, "repeat_last_n": -1},
    {"dry_multiplier": 0.8, "dry_allowed_length": 1},
    {"mirostat_mode": 2, "mirostat_eta": 0.5},
    {"xtc_probability": 0.5, "xtc_threshold": 0.05, **OFF},
    {"dynatemp_range": 0.5, "typical_p": 0.9},
    {"top_n_sigma": 1.5, "logit_bias": {70: 3.0}, "min_tokens": 4},
    {"temperature": 0, "frequency_penalty": 0.5},
]


def test_a_seed_gives_the_same_tokens_whatever_else_runs():
    """Alone, and beside others in a cache that holds two, so that most are preempted."""
    requests = [
        Request(
            [65 + i, 66, 67],
            SamplingParams(max_tokens=30, seed=i, **kind),
            constraint=Counting(40) if i % 2 else None,
        )
        for i, kind in enumerate(EVERY_KIND)
    ]
    alone = []
    for request in requests:
        engine = Engine(ScriptedRunner(noise))
        alone.append([event.token for event in engine.submit(request)])
        engine.close()
    assert all(len(tokens) == 30 for tokens in alone)
    tight = LIMITS.__class__(**{**vars_of(LIMITS), "n_blocks": 2 * 9})
    engine = Engine(ScriptedRunner(noise, tight))
    handles = [engine.submit(request) for request in requests]
    assert [[event.token for event in handle] for handle in handles] == alone
    assert engine.counters.preemptions > 0
    engine.close()


def vars_of(limits):
    return {name: getattr(limits, name) for name in limits.__dataclass_fields__}


@pytest.mark.parametrize(
    ("kind", "led"),
    [
        ({}, True),
        ({"typical_p": 0.5}, True),
        ({"xtc_probability": 1.0, "xtc_threshold": 0.1}, True),
        ({"dynatemp_range": 0.4}, True),
        ({"temperature": 0, "mirostat_mode": 2, "top_n_sigma": 1.0}, True),
        ({"top_n_sigma": 1.0}, False),
        ({"mirostat_mode": 2}, False),
        ({"repeat_penalty": 1.1}, False),
        ({"dry_multiplier": 1.0}, False),
        ({"logit_bias": {1: 1.0}}, False),
        ({"min_tokens": 1}, False),
        ({"logprobs": True}, False),
    ],
)
def test_the_devices_largest_logits_are_used_where_they_are_enough(kind, led):
    chooser = Chooser(Request([1], SamplingParams(**kind)), 3)
    assert chooser.is_led(64) == led
    row = row_of(8, 300)
    ids = np.argsort(-row, kind="stable")[:64].astype(np.int32)
    for step in range(60 if led else 0):
        assert chooser.choose_led(ids, row[ids], step) == chooser.choose(row, [1], step)


def test_impossible_biases_and_breakers_are_refused():
    for bias in ({-1: 1.0}, {1.5: 1.0}, {"a": 1.0}, {1: math.nan}, {1: math.inf}, {1: "x"}, [1]):
        with pytest.raises(InvalidArgumentError, match="logit_bias"):
            SamplingParams(logit_bias=bias)
    assert SamplingParams(logit_bias={"12": 1}).logit_bias == {12: 1.0}  # as JSON has it
    for breakers in ("", [""], [1], None):
        with pytest.raises(InvalidArgumentError, match="dry_sequence_breakers"):
            SamplingParams(dry_sequence_breakers=breakers)
    engine = Engine(ScriptedRunner(noise))
    with pytest.raises(InvalidArgumentError, match=f"logit_bias has token {VOCAB}"):
        engine.submit(Request([1], SamplingParams(logit_bias={VOCAB: 1.0})))
    engine.close()
