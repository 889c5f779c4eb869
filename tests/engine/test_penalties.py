"""The penalties against the same written plainly, token by token."""

import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llama3jit.engine.params import SamplingParams
from llama3jit.engine.penalties import dry, penalize

VOCAB = 12
histories = st.lists(st.integers(0, 5), min_size=1, max_size=60)
logit_rows = st.lists(
    st.one_of(st.integers(-3, 3), st.just(-math.inf), st.floats(-9, 9, width=32)),
    min_size=VOCAB,
    max_size=VOCAB,
).map(lambda values: np.array(values, np.float32))


def naive_penalties(logits, history, params):
    window = history if params.repeat_last_n < 0 else history[-params.repeat_last_n :]
    out = []
    for token, logit in enumerate(logits.tolist()):
        count = window.count(token)
        if count:
            logit = logit / params.repeat_penalty if logit > 0 else logit * params.repeat_penalty
            logit -= count * params.frequency_penalty + params.presence_penalty
        out.append(logit)
    return np.array(out, np.float32)


@settings(max_examples=300, deadline=None)
@given(
    logit_rows,
    histories,
    st.floats(0.5, 2),
    st.one_of(st.just(-1), st.integers(1, 70)),
    st.floats(-2, 2),
    st.floats(-2, 2),
)
def test_penalties_are_those_of_the_plain_form(row, history, factor, last_n, frequency, presence):
    params = SamplingParams(
        repeat_penalty=factor,
        repeat_last_n=last_n,
        frequency_penalty=frequency,
        presence_penalty=presence,
    )
    expected = naive_penalties(row, history, params)
    penalize(row, history, params)
    np.testing.assert_allclose(row, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("given", "penalizes"),
    [
        ({}, False),
        ({"repeat_penalty": 1.1}, True),
        ({"repeat_penalty": 1.1, "repeat_last_n": 0}, False),
        ({"presence_penalty": -0.1}, True),
        ({"frequency_penalty": 0.1}, True),
    ],
)
def test_neutral_penalties_are_off(given, penalizes):
    assert SamplingParams(**given).penalizes == penalizes


def since_breaker(window, breakers):
    """Tokens after the newest breaker (head, rest): the head's place from the end, less the rest
    that follows it; the longest rest counts."""
    for back in range(len(window)):
        at = len(window) - 1 - back
        rests = [
            rest
            for rest in breakers.get(window[at], ())
            if tuple(window[at + 1 : at + 1 + len(rest)]) == rest
        ]
        if rests:
            return back - max(map(len, rests))
    return len(window)


def naive_dry(logits, history, params, breakers):
    n = params.dry_penalty_last_n
    window = history if n < 0 else history[max(0, len(history) - n) :]
    limit = since_breaker(window, breakers)
    longest = {}
    if len(window) > params.dry_allowed_length and limit >= params.dry_allowed_length:
        for end in range(len(window) - 1):  # a repetition ends here, and this token goes on
            same = 0
            while same <= end and window[end - same] == window[-1 - same]:
                same += 1
            same = min(same, limit)
            if same >= params.dry_allowed_length:
                token = window[end + 1]
                longest[token] = max(longest.get(token, 0), same)
    out = logits.astype(np.float64)
    for token, length in longest.items():
        if () not in breakers.get(token, ()):
            most = int(88.7228391 / math.log(params.dry_base)) if params.dry_base > 1 else 0
            exponent = min(length - params.dry_allowed_length, most)
            out[token] -= params.dry_multiplier * params.dry_base**exponent
    return out.astype(np.float32)


rests = st.lists(st.integers(0, 5), max_size=3).map(tuple)
breakers_of = st.dictionaries(
    st.integers(0, 5), st.lists(rests, min_size=1, max_size=2).map(tuple), max_size=3
)


@settings(max_examples=800, deadline=None)
@given(
    logit_rows,
    st.one_of(
        st.lists(st.integers(0, 1), min_size=1, max_size=40),
        histories,
        st.lists(st.integers(0, 3), min_size=1, max_size=5).map(lambda part: part * 8),
    ),
    st.sampled_from([1.0, 1.1, 1.75, 3.0, 5e8]),
    st.integers(1, 4),
    st.one_of(st.just(-1), st.integers(1, 50)),
    breakers_of,
)
def test_dry_is_the_plain_form(row, history, base, allowed, last_n, breakers):
    params = SamplingParams(
        dry_multiplier=0.8, dry_base=base, dry_allowed_length=allowed, dry_penalty_last_n=last_n
    )
    expected = naive_dry(row, history, params, breakers)
    dry(row, history, params, breakers)
    np.testing.assert_allclose(row, expected, rtol=1e-5, atol=1e-5)


def test_dry_of_the_example_in_llama_cpp():
    """`a b c c b c y a b c`: c would make 4 of 3, y 3 of 2, b 2 of 1; nothing else is changed."""
    a, b, c, y = range(4)
    row = np.zeros(5, np.float32)
    params = SamplingParams(dry_multiplier=1.0, dry_base=2.0, dry_allowed_length=1)
    dry(row, [a, b, c, c, b, c, y, a, b, c], params, {})
    assert row.tolist() == [0, -1, -4, -2, 0]
    row = np.zeros(5, np.float32)
    dry(row, [a, b, c, c, b, c, y, a, b, c], params, {a: ((),)})  # `a` ends a repetition
    assert row.tolist() == [0, -1, -2, -2, 0]


def test_the_longest_breaker_counts():
    """Of `0` and `0 1`, both there, a repetition begins after the `1`, and is too short."""
    params = SamplingParams(dry_multiplier=1.0, dry_base=2.0, dry_allowed_length=2)
    history = [3, 0, 1, 2, 3, 0, 1, 2]
    for rests, changed in ((((),), [3]), (((), (1,)), []), (((1,), ()), [])):
        row = np.zeros(5, np.float32)
        dry(row, history, params, {0: rests})
        assert np.flatnonzero(row).tolist() == changed


def test_a_breaker_is_seen_as_far_back_as_it_matters():
    """The power ends at 4 (for f32), so that 5 tokens are as good as more; a breaker whose head is
    the 8th leaves 4."""
    params = SamplingParams(dry_multiplier=1.0, dry_base=5e8, dry_allowed_length=1)
    history = [8, 0, 1, 2, 3, 4, 5, 6] * 2
    for rests, power in (((), 4), (((0, 1, 2),), 3), (((0, 1),), 4)):
        row = np.zeros(9, np.float32)
        dry(row, history, params, {8: rests} if rests else {})
        assert row[8] == np.float32(-(5e8**power))


def test_dry_of_a_long_context_is_cheap():
    """Linear in the context for what repeats itself all the time too."""
    row = np.zeros(8, np.float32)
    params = SamplingParams(dry_multiplier=0.8)
    history = [1, 2, 3, 4] * 16_384
    began = time.perf_counter()
    dry(row, history, params, {7: ((),)})
    assert time.perf_counter() - began < 0.5
    assert row[1] == np.float32(np.finfo(np.float32).min) or row[1] < -1e38
    assert row[2] == 0
