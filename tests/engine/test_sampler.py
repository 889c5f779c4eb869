"""The sampler against the same filters written plainly: a full sort in float64."""

import math
import warnings

import numpy as np
import pytest

from llama3jit.engine.draws import uniform
from llama3jit.engine.filters import survivors
from llama3jit.engine.params import SamplingParams
from llama3jit.engine.sampler import (
    is_led,
    logprob,
    sample,
    sample_leading,
)
from llama3jit.errors import InvalidArgumentError, NumericsError


def naivesurvivors(logits, params):
    order = sorted(range(len(logits)), key=lambda i: (-float(logits[i]), i))
    if params.top_k:
        order = order[: params.top_k]
    if params.top_p < 1:
        weights = np.exp(logits[order].astype(np.float64) - float(logits.max()))
        shares = np.cumsum(weights) / weights.sum()
        reached = [i for i, share in enumerate(shares) if share >= params.top_p]
        order = order[: reached[0] + 1] if reached else order
    if params.min_p > 0:
        best = float(logits.max())
        order = [i for i in order if math.exp(float(logits[i]) - best) >= params.min_p]
    return order


def rows(seed, vocab):
    rng = np.random.default_rng(seed)
    yield rng.standard_normal(vocab).astype(np.float32) * 3
    yield rng.standard_normal(vocab).astype(np.float32) * 0.01
    yield rng.integers(-4, 4, vocab).astype(np.float32)  # ties
    peaked = rng.standard_normal(vocab).astype(np.float32)
    peaked[vocab // 3] = 40
    yield peaked
    yield np.full(vocab, -7.5, np.float32)


@pytest.mark.parametrize("vocab", [1, 2, 41, 300, 1024, 5003])
@pytest.mark.parametrize(
    "filters",
    [
        {"top_k": 40, "top_p": 0.95, "min_p": 0.05},
        {"top_k": 7, "top_p": 1.0, "min_p": 0.0},
        {"top_k": 1, "top_p": 0.9, "min_p": 0.3},
        {"top_k": 600, "top_p": 0.5, "min_p": 0.0},
        {"top_k": 5, "top_p": 1.0, "min_p": 0.37},
        {"top_k": 0, "top_p": 0.83, "min_p": 0.0},
        {"top_k": 0, "top_p": 0.9, "min_p": 0.11},
        {"top_k": 0, "top_p": 1.0, "min_p": 0.07},
        {"top_k": 0, "top_p": 0.0, "min_p": 0.0},
        {"top_k": 0, "top_p": 1.0, "min_p": 1.0},
        {"top_k": 10**9, "top_p": 0.99, "min_p": 0.0},
    ],
)
def test_filters_keep_what_a_full_sort_keeps(vocab, filters):
    params = SamplingParams(**filters)
    for row in rows(vocab, vocab):
        kept = survivors(row, params, float(row.max()))
        if kept is None:  # no filter cuts anything off
            assert filters["top_k"] >= vocab
            assert (filters["top_p"], filters["min_p"]) == (1, 0)
        else:
            assert list(kept) == naivesurvivors(row, params)


def test_neutral_values_switch_every_filter_off():
    params = SamplingParams(top_k=0, top_p=1.0, min_p=0.0)
    row = np.linspace(-3, 3, 50, dtype=np.float32)
    assert survivors(row, params, 3.0) is None
    drawn = {sample(row, params, 1, step) for step in range(4000)}
    assert len(drawn) > 35


@pytest.mark.parametrize(
    "filters", [{"top_k": 0, "top_p": 1.0, "min_p": 0.0}, {"top_k": 6}, {"min_p": 0.2}]
)
def test_frequencies_are_those_of_the_tempered_softmax(filters):
    params = SamplingParams(temperature=0.7, **filters)
    row = np.array([1.0, 0.5, 2.0, -1.0, 0.0, 1.5, 1.0, -3.0], np.float32)
    kept = naivesurvivors(row, params)
    weights = np.exp(row[kept].astype(np.float64) / 0.7)
    expected = dict(zip(kept, weights / weights.sum(), strict=True))
    draws = 20_000
    counts = np.bincount([sample(row, params, 5, step) for step in range(draws)], minlength=8)
    for token in range(8):
        chance = expected.get(token, 0.0)
        assert abs(counts[token] / draws - chance) <= 5 * math.sqrt(chance / draws)


def test_greedy_is_the_lowest_of_the_largest():
    row = np.zeros(1000, np.float32)
    row[[17, 300, 999]] = 2.5
    assert sample(row, SamplingParams(temperature=0, top_k=3, min_p=0.5), 0, 0) == 17


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-30, 1e-6])
def test_tiny_temperatures_are_greedy_without_overflow(temperature):
    row = np.array([-3e38, 3e38, 2.9e38, 1.0], np.float32)
    for filters in ({}, {"top_k": 0, "top_p": 1.0, "min_p": 0.0}):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            token = sample(row, SamplingParams(temperature=temperature, **filters), 3, 1)
        assert token == 1


def test_huge_temperature_is_flat():
    row = np.linspace(-30, 30, 16, dtype=np.float32)
    params = SamplingParams(temperature=1e300, top_k=0, top_p=1.0, min_p=0.0)
    assert len({sample(row, params, 0, step) for step in range(400)}) == 16


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_name_the_step_and_token(bad, temperature):
    row = np.zeros(300, np.float32)
    row[[123, 200]] = bad
    with pytest.raises(NumericsError, match=r"step 41: 2 of 300 .* token 123: "):
        sample(row, SamplingParams(temperature=temperature), 0, 41)


def test_uniform_depends_on_seed_and_step_alone_and_is_even():
    assert uniform(1, 2) == uniform(1, 2)
    numbers = np.array([uniform(seed, step) for seed in range(100) for step in range(200)])
    assert len(set(numbers.tolist())) == len(numbers)
    assert 0 <= numbers.min() < numbers.max() < 1
    counts = np.bincount((numbers * 50).astype(int), minlength=50)
    assert ((counts - 400) ** 2 / 400).sum() < 95  # chi-square with 49 degrees: 1 in 10,000
    # Neighbouring seeds and steps are not correlated.
    grid = numbers.reshape(100, 200)
    assert abs(np.corrcoef(grid[:-1].ravel(), grid[1:].ravel())[0, 1]) < 0.03
    assert abs(np.corrcoef(grid[:, :-1].ravel(), grid[:, 1:].ravel())[0, 1]) < 0.03


def test_logprob_is_the_log_of_softmax():
    row = np.random.default_rng(0).standard_normal(700).astype(np.float32) * 9
    exact = row.astype(np.float64)
    expected = exact[5] - exact.max() - math.log(np.exp(exact - exact.max()).sum())
    assert logprob(row, 5) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "hot"),
        ("top_k", -1),
        ("top_k", 2.5),
        ("top_p", 1.01),
        ("top_p", -0.5),
        ("min_p", 2),
        ("min_p", math.nan),
        ("seed", -1),
        ("seed", 2**64),
        ("seed", "x"),
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", True),
        ("typical_p", 1.5),
        ("top_n_sigma", -1),
        ("xtc_probability", 1.1),
        ("xtc_threshold", -0.1),
        ("dynatemp_range", math.inf),
        ("dynatemp_exponent", -1),
        ("repeat_penalty", 0),
        ("repeat_penalty", -1),
        ("repeat_last_n", -2),
        ("presence_penalty", math.nan),
        ("frequency_penalty", "x"),
        ("dry_multiplier", -0.5),
        ("dry_base", 0.5),
        ("dry_allowed_length", 0),
        ("dry_penalty_last_n", -2),
        ("mirostat_mode", 1),
        ("mirostat_mode", 3),
        ("mirostat_tau", -1),
        ("mirostat_eta", 2),
        ("top_logprobs", -1),
        ("top_logprobs", 3),
        ("min_tokens", -1),
    ],
)
def test_impossible_parameters_are_refused_by_name(name, value):
    with pytest.raises(InvalidArgumentError, match=f"^{name} is .*expected"):
        SamplingParams(**{name: value})


@pytest.mark.parametrize(
    "filters",
    [
        {},
        {"temperature": 0},
        {"top_k": 64, "top_p": 1.0, "min_p": 0.0, "temperature": 3.0},
        {"top_k": 1},
        {"top_k": 7, "top_p": 0.4, "min_p": 0.3},
    ],
)
def test_the_largest_logits_are_enough(filters):
    params = SamplingParams(**filters)
    assert is_led(params, 64)
    for row in rows(3, 1024):
        ids = np.argsort(-row, kind="stable")[:64].astype(np.int32)
        for step in range(50):
            expected = sample(row, params, 11, step)
            assert sample_leading(ids, row[ids], params, 11, step) == expected


def test_when_the_largest_logits_are_not_enough():
    assert not is_led(SamplingParams(top_k=65), 64)
    assert not is_led(SamplingParams(top_k=0), 64)
    assert is_led(SamplingParams(top_k=0, temperature=0), 64)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 10**5000),
        ("temperature", np.complex64(1)),
        ("temperature", np.timedelta64(1)),
        ("top_k", np.timedelta64(3)),
        ("max_tokens", -(10**5000)),
        ("seed", 10**5000),
        ("logprobs", "no"),
        ("logprobs", np.ones(2)),
        ("logit_bias", {1: 10**400}),
        ("logit_bias", {1: np.complex64(1)}),
        ("logit_bias", {"9" * 5000: 1}),
        ("logit_bias", {10**5000: 1}),
        ("logit_bias", {"\u0663": 1}),
    ],
    ids=lambda given: given if isinstance(given, str) else type(given).__name__,
)
def test_numbers_that_are_none_are_refused_by_name(name, value):
    with pytest.raises(InvalidArgumentError, match=name) as caught:
        SamplingParams(**{name: value})
    assert len(str(caught.value)) < 200
