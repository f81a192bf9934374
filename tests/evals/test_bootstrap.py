"""Intervals: their laws, and their coverage by simulation."""

from math import exp, lgamma, log
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from egpo.evals.intervals import SHARES, mean_with_interval, mid_quantiles, resampled_means, student_t

VALUES = st.lists(st.floats(-10, 10).map(lambda value: round(value, 3)), min_size=2, max_size=40)


@given(VALUES, st.integers(0, 100))
def test_the_mean_lies_in_its_interval_and_the_seed_decides(values, seed):
    estimate = mean_with_interval(values, seed=seed, bounds=(-10, 10))
    assert estimate.low <= estimate.value <= estimate.high
    assert estimate.value == pytest.approx(np.mean(values))
    assert estimate == mean_with_interval(values, seed=seed, bounds=(-10, 10))


@given(VALUES.filter(lambda values: min(values) < max(values)), st.floats(-5, 5), st.floats(0.5, 3))
def test_it_moves_and_stretches_with_the_values(values, shift, scale):
    plain = mean_with_interval(values)
    moved = mean_with_interval([shift + scale * value for value in values])
    assert moved.low == pytest.approx(shift + scale * plain.low, abs=1e-6)
    assert moved.high == pytest.approx(shift + scale * plain.high, abs=1e-6)


def test_the_order_of_problems_does_not_matter():
    values = [0.0, 0.25, 0.25, 1.0, 0.5]
    assert mean_with_interval(values) == mean_with_interval(sorted(values, reverse=True))


def test_nan_is_no_value():
    with_nan = mean_with_interval([0.0, float("nan"), 1.0, 1.0])
    assert with_nan == mean_with_interval([0.0, 1.0, 1.0])
    assert with_nan.num_problems == 3
    assert mean_with_interval([float("nan")]) is None
    assert mean_with_interval([]) is None


def test_agreement_of_all_problems_is_no_certainty():
    """None of 64 right: the true share may be 5.6 %, at which 64 failures in a row still happen once in forty."""
    none_right = mean_with_interval([0.0] * 64, bounds=SHARES)
    assert (none_right.value, none_right.low) == (0.0, 0.0)
    assert (1 - none_right.high) ** 64 == pytest.approx(0.025)
    all_right = mean_with_interval([1.0] * 64, bounds=SHARES)
    assert all_right.low == pytest.approx(1 - none_right.high)
    unbounded = mean_with_interval([0.3] * 64)
    assert (unbounded.value, unbounded.low, unbounded.high) == (0.3, None, None)
    single = mean_with_interval([1.0], bounds=SHARES)
    assert single.low == pytest.approx(0.025)


def test_students_t_is_that_of_the_tables():
    tables = {5: 2.571, 10: 2.228, 30: 2.042, 63: 1.998, 120: 1.980}
    for freedom, value in tables.items():
        assert student_t(0.975, freedom) == pytest.approx(value, rel=2e-3)


def test_problems_are_the_clusters():
    """Eight equal responses to each problem tell no more than one: the interval must not shrink."""
    rng = np.random.default_rng(0)
    right = rng.random(100) < 0.4
    clustered = mean_with_interval(right.astype(float), bounds=SHARES)
    as_if_independent = mean_with_interval(np.repeat(right.astype(float), 8), bounds=SHARES)
    width = clustered.high - clustered.low
    assert width == pytest.approx(2 * 1.984 * np.sqrt(right.mean() * (1 - right.mean()) / 99), rel=0.05)
    assert width > 2.5 * (as_if_independent.high - as_if_independent.low)


def test_resampling_is_that_of_problems_with_replacement():
    values = np.array([0.0, 0.25, 0.25, 1.0] * 10)
    means = resampled_means(values, seed=3, num_resamples=40_000)
    assert means.mean() == pytest.approx(values.mean(), abs=0.003)
    assert means.std() == pytest.approx(values.std() / np.sqrt(values.size), rel=0.02)
    low, high = mid_quantiles(means, (0.025, 0.975))
    assert (high - low) / 2 == pytest.approx(NormalDist().inv_cdf(0.975) * means.std(), rel=0.05)


@pytest.mark.parametrize("num_problems", [64, 128, 512])
@pytest.mark.parametrize("accuracy", [0.2, 0.5, 0.8])
def test_95_percent_of_intervals_hold_the_truth_for_single_responses(num_problems, accuracy):
    """Exactly: the interval of every possible count, weighed by its probability. Counts are a lattice, so that the
    coverage at one accuracy jumps by two points; over a neighbourhood of it, it must be 94 to 96 %."""
    counts = np.arange(num_problems + 1)
    intervals = [mean_with_interval([1.0] * count + [0.0] * (num_problems - count), bounds=SHARES) for count in counts]
    low, high = np.array([one.low for one in intervals]), np.array([one.high for one in intervals])
    coverages = []
    for truth in np.linspace(accuracy - 0.02, accuracy + 0.02, 41):
        coverages.append(binomial(num_problems, truth)[(low <= truth) & (truth <= high)].sum())
    assert 0.94 <= np.mean(coverages) <= 0.96


def binomial(n, p):
    logs = [lgamma(n + 1) - lgamma(c + 1) - lgamma(n - c + 1) + c * log(p) + (n - c) * log(1 - p) for c in range(n + 1)]
    return np.array([exp(value) for value in logs])


@pytest.mark.parametrize(("num_problems", "n"), [(64, 2), (64, 8), (256, 4)])
def test_95_percent_of_intervals_hold_the_truth_for_clusters(num_problems, n):
    """By simulation: problems of differing difficulty, n responses to each, for models of 20, 50 and 80 %. The standard
    error of 4,500 trials is a third of a point; docs/evaluation.md has the accuracies apart, from more of them."""
    rng = np.random.default_rng(7)
    accuracies = np.repeat([0.2, 0.5, 0.8], 1_500)[:, None]
    right = rng.binomial(n, rng.beta(accuracies, 1 - accuracies, size=(accuracies.size, num_problems)))
    held = 0
    for trial, accuracy in enumerate(accuracies[:, 0]):
        estimate = mean_with_interval(right[trial] / n, seed=trial, bounds=SHARES, num_resamples=1_000)
        held += estimate.low <= accuracy <= estimate.high
    assert 0.94 <= held / accuracies.size <= 0.96
