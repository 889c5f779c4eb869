"""Each filter, and all in their order, against the same written plainly: lists, sorts, float64."""

import itertools
import math
import statistics

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from llama3jit.engine.draws import EXCLUSION, TOKEN, dynamic_temperature, uniform
from llama3jit.engine.filters import exclude_top, narrow, survivors
from llama3jit.engine.params import SamplingParams
from llama3jit.engine.sampler import sample, sample_row

OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
CLOSE = 1e-6  # nearer to a limit than this, float64 sums in another order may differ


class Near(Exception):
    """A number is so near to a limit that either side is right."""


def above(value, limit):
    if value != limit and abs(value - limit) < CLOSE * max(1, abs(limit)):
        raise Near
    return value >= limit


def softmax(logits):
    high = max(logits)
    weights = [math.exp(x - high) for x in logits]
    return [w / math.fsum(weights) for w in weights]


def naive_top_n_sigma(kept, n):
    logits = [x for _, x in kept]
    floor = max(logits) - n * statistics.pstdev(logits)
    if any(x != max(logits) and abs(x - floor) < CLOSE * max(1, abs(x)) for x in logits):
        raise Near
    return [(i, x) for i, x in kept if x >= floor or x == max(logits)]


def naive_typical(kept, p):
    chances = softmax([x for _, x in kept])
    entropy = -math.fsum(c * math.log(c) for c in chances if c > 0)
    scores = [abs(-math.log(c) - entropy) if c > 0 else math.inf for c in chances]
    # Equal logits have equal scores; others that are as good as equal may go either way.
    pairs = sorted({(score, x) for score, (_, x) in zip(scores, kept, strict=True)})
    if any(b[0] - a[0] < CLOSE for a, b in itertools.pairwise(pairs)):
        raise Near
    order = sorted(range(len(kept)), key=lambda j: (scores[j], -kept[j][1], kept[j][0]))
    held, total = [], 0.0
    for j in order:
        held.append(kept[j])
        total += chances[j]
        if abs(total - p) < CLOSE:
            raise Near
        if total > p:
            break
    return sorted(held, key=lambda pair: (-pair[1], pair[0]))


def naive_top_p(kept, p):
    held, total = [], 0.0
    for pair, chance in zip(kept, softmax([x for _, x in kept]), strict=True):
        held.append(pair)
        total += chance
        if abs(total - p) < CLOSE:
            raise Near
        if total >= p:
            break
    return held


def naive_min_p(kept, p):
    best = max(x for _, x in kept)
    return [(i, x) for i, x in kept if above(math.exp(x - best), p)]


def naive_xtc(kept, threshold):
    chances = softmax([x for _, x in kept])
    strong = [j for j, chance in enumerate(chances) if above(chance, threshold)]
    return kept[strong[-1] :] if len(strong) >= 2 else kept


def naive_chain(logits, params, chance=1.0):
    """[(id, logit)] of what may be drawn, by falling logit, then rising id."""
    kept = [(i, float(x)) for i, x in enumerate(logits) if x > -math.inf]
    kept.sort(key=lambda pair: (-pair[1], pair[0]))
    if params.top_n_sigma > 0:
        kept = naive_top_n_sigma(kept, params.top_n_sigma)
    if params.top_k:
        kept = kept[: params.top_k]
    if params.typical_p < 1:
        kept = naive_typical(kept, params.typical_p)
    if params.top_p < 1:
        kept = naive_top_p(kept, params.top_p)
    if params.min_p > 0:
        kept = naive_min_p(kept, params.min_p)
    if chance < params.xtc_probability and params.xtc_threshold <= 0.5:
        kept = naive_xtc(kept, params.xtc_threshold)
    return kept


@st.composite
def rows(draw):
    """Logits with ties, without, peaked, and partly forbidden."""
    size = draw(st.integers(1, 40))
    numbers = draw(
        st.sampled_from(
            [st.integers(-3, 3), st.floats(-20, 20, width=32), st.sampled_from([0.0, 0.5, 30.0])]
        )
    )
    row = np.array(draw(st.lists(numbers, min_size=size, max_size=size)), np.float32)
    for i in draw(st.sets(st.integers(0, size - 1), max_size=size // 2)):
        row[i] = -math.inf
    assume(row.max() > -math.inf)
    if draw(st.booleans()):  # long enough for the bounds by groups
        row = np.tile(row, 1 + 700 // size)
    return row


def shares(least=0.0, most=1.0):
    return st.floats(least, most, exclude_min=True, exclude_max=True)


FILTERS = st.fixed_dictionaries(
    {"temperature": st.just(1.0)},
    optional={
        "top_k": st.integers(1, 50),
        "top_p": shares(),
        "min_p": shares(),
        "typical_p": shares(),
        "top_n_sigma": st.floats(0.1, 4),
        "xtc_threshold": shares(most=0.6),
        "xtc_probability": st.just(1.0),
    },
).map(lambda given: OFF | given)


def kept_of(row, params):
    """What the filters and xtc leave, as they are used."""
    high = float(row.max())
    ids = survivors(row, params, high)
    ids = np.flatnonzero(row > -math.inf) if ids is None else ids
    if params.excludes_top:
        values = row[ids].astype(np.float64)
        left = exclude_top(values, high=values.max(), threshold=params.xtc_threshold)
        ids = ids if left is None else ids[left]
    return ids


@settings(max_examples=300, deadline=None)
@given(rows(), FILTERS)
def test_all_filters_in_their_order_keep_what_the_plain_form_keeps(row, filters):
    params = SamplingParams(**filters)
    try:
        expected = naive_chain(row, params, 0.0)
    except Near:
        return
    kept = kept_of(row, params)
    assert sorted(kept) == sorted(i for i, _ in expected)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("top_n_sigma", st.floats(0.01, 6)),
        ("typical_p", shares()),
        ("top_p", shares()),
        ("min_p", shares()),
        ("top_k", st.integers(1, 800)),
    ],
)
@settings(max_examples=150, deadline=None)
@given(row=rows(), data=st.data())
def test_each_filter_alone(name, values, row, data):
    params = SamplingParams(**(OFF | {name: data.draw(values)}))
    try:
        expected = naive_chain(row, params)
    except Near:
        return
    kept = survivors(row, params, float(row.max()))
    if kept is None:
        assert params.top_k >= len(row)
    else:
        assert kept.tolist() == [i for i, _ in expected]


PAIRS = [
    ("top_n_sigma", "top_p", 1.0, 0.7),
    ("top_n_sigma", "typical_p", 1.0, 0.6),
    ("top_n_sigma", "top_k", 0.7, 5),
    ("top_k", "typical_p", 9, 0.6),
    ("typical_p", "top_p", 0.8, 0.7),
    ("typical_p", "min_p", 0.7, 0.4),
    ("top_p", "min_p", 0.9, 0.3),
]


@pytest.mark.parametrize(("first", "second", "one", "two"), PAIRS)
def test_the_second_sees_what_the_first_leaves(first, second, one, two):
    params = SamplingParams(**(OFF | {first: one, second: two}))
    compared = 0
    for seed in range(40):
        row = np.random.default_rng(seed).standard_normal(60).astype(np.float32) * 1.5
        try:
            expected = naive_chain(row, params)
        except Near:
            continue
        compared += 1
        kept = survivors(row, params, float(row.max()))
        assert kept.tolist() == [i for i, _ in expected]
    assert compared > 30


@settings(max_examples=200, deadline=None)
@given(row=rows(), threshold=shares(most=0.5))
def test_xtc_leaves_the_least_of_the_strong(row, threshold):
    values = np.sort(row[row > -math.inf])[::-1].astype(np.float64)
    try:
        expected = naive_xtc(list(enumerate(values.tolist())), threshold)
    except Near:
        return
    left = exclude_top(values, float(values[0]), threshold)
    left = np.arange(len(values)) if left is None else left
    assert left.tolist() == [i for i, _ in expected]


def test_xtc_of_unordered_logits_leaves_the_last_of_the_weakest_ties():
    values = np.log(np.array([0.2, 0.05, 0.3, 0.2, 0.05, 0.2]))
    left = exclude_top(values, float(values.max()), 0.15)
    assert left.tolist() == [1, 4, 5]
    assert exclude_top(values, float(values.max()), 0.25) is None
    with_forbidden = np.array([0.0, 0.0, -math.inf])
    assert exclude_top(with_forbidden, 0.0, 0.0).tolist() == [1, 2]


def test_typical_keeps_what_is_as_surprising_as_expected():
    """Worked by hand: p = 0.7, 0.1, 0.1, 0.1; entropy 0.9404; -log p = 0.357 and 2.303."""
    logits = np.log(np.array([0.7, 0.1, 0.1, 0.1]))
    assert narrow(logits, SamplingParams(**OFF, typical_p=0.5)).tolist() == [0]
    assert narrow(logits, SamplingParams(**OFF, typical_p=0.75)).tolist() == [0, 1]
    flat = np.zeros(4)
    assert narrow(flat, SamplingParams(**OFF, typical_p=0.6)).tolist() == [0, 1, 2]


def test_xtc_happens_as_often_as_it_is_told():
    row = np.log(np.array([0.4, 0.3, 0.2, 0.1], np.float32))
    params = SamplingParams(**OFF, temperature=1.0, xtc_probability=0.3, xtc_threshold=0.15)
    draws = 20_000
    counts = np.bincount([sample(row, params, 9, step) for step in range(draws)], minlength=4)
    left = np.array([0, 0, 2 / 3, 1 / 3])
    expected = 0.7 * np.array([0.4, 0.3, 0.2, 0.1]) + 0.3 * left
    assert ((counts - draws * expected) ** 2 / (draws * expected)).sum() < 21  # 3 degrees: 1 in 1e4


def test_the_chance_of_xtc_does_not_depend_on_the_draw():
    pairs = np.array([[uniform(3, i, s) for s in (TOKEN, EXCLUSION)] for i in range(4000)])
    assert abs(np.corrcoef(pairs.T)[0, 1]) < 0.06
    assert abs(pairs.mean() - 0.5) < 0.02


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
def test_temperature_draws_from_the_tempered_softmax(temperature):
    row = np.array([1.0, 2.0, 0.5, 2.0, -1.0], np.float32)
    params = SamplingParams(**OFF, temperature=temperature)
    draws = 20_000
    counts = np.bincount([sample(row, params, 4, step) for step in range(draws)], minlength=5)
    expected = draws * np.array(softmax((row / temperature).tolist()))
    assert ((counts - expected) ** 2 / expected).sum() < 24  # 4 degrees: 1 in 1e4


@settings(max_examples=300, deadline=None)
@given(rows(), st.floats(0.01, 3), st.floats(0.01, 3), st.floats(0, 4))
def test_dynamic_temperature_follows_the_entropy(row, temperature, spread, exponent):
    params = SamplingParams(
        temperature=temperature, dynatemp_range=spread, dynatemp_exponent=exponent
    )
    logits = [float(x) for x in row if x > -math.inf]
    found = dynamic_temperature(row.astype(np.float64), float(row.max()), params)
    if len(logits) == 1:
        assert found == temperature
        return
    entropy = -math.fsum(c * math.log(c) for c in softmax(logits) if c > 0)
    share = min(max(entropy / math.log(len(logits)), 0), 1)
    low, high = max(0, temperature - spread), temperature + spread
    if share < 1e-9:  # 0 ** exponent has a jump
        assert low <= found <= high
    else:
        assert found == pytest.approx(low + (high - low) * share**exponent, rel=1e-6)


def test_a_dynamic_temperature_of_zero_takes_the_largest():
    row = np.array([-90.0, 60.0, 0.0], np.float32)
    params = SamplingParams(**OFF, temperature=0.5, dynatemp_range=0.5)
    assert {sample(row, params, 1, step) for step in range(50)} == {1}


@settings(max_examples=200, deadline=None)
@given(rows(), FILTERS, st.integers(0, 2**64 - 1), st.integers(0, 1000))
def test_nothing_forbidden_or_filtered_is_ever_drawn(row, filters, seed, step):
    params = SamplingParams(**filters)
    token = sample_row(row, float(row.max()), params, seed, step)
    assert row[token] > -math.inf
    assert token in kept_of(row, params)
