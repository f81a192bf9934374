"""Several seeds: the laws, and the two ends at which the test is a known one."""

import math

import numpy as np
import pytest

from egpo.comparisons.outcome import ALPHA, chi_over_root_freedom, two_sided_p
from egpo.comparisons.seeds import Spread, compare_over_seeds, spread_of


def runs(seed, means, problems=100, noise=0.2):
    rng = np.random.default_rng(seed)
    return np.array(means)[:, None] + rng.normal(0, noise, (len(means), problems))


@pytest.mark.parametrize("freedom", [2, 4, 8])
def test_where_seeds_have_the_whole_variance_it_is_students_t(freedom):
    for t in (0.5, 2.0, 4.0):
        assert Spread(0.0, 1.0, freedom).p_value(t) == pytest.approx(two_sided_p(t, freedom))


def test_where_they_have_none_it_is_the_normal_test_over_problems():
    for z in (0.5, 1.96, 3.0):
        assert Spread(1.0, 0.0, 4).p_value(z) == pytest.approx(math.erfc(z / math.sqrt(2)))


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 6, 8, 18])
@pytest.mark.parametrize("share", [0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.95, 0.99, 1.0])
def test_false_alarms_are_five_of_a_hundred_whatever_share_of_the_variance_seeds_truly_have(freedom, share):
    """Without a simulation: over what seeds may say of their variance, the chance that the interval leaves 0 out."""
    said = [Spread(1 - share, share * s * s, freedom) for s in chi_over_root_freedom(freedom, 400)]
    alarms = np.mean([math.erfc(spread.reach(ALPHA) / math.sqrt(2)) for spread in said])
    assert (0.025 if freedom == 1 else 0.04) < alarms < 0.054


def test_the_interval_touches_zero_where_p_is_the_level():
    outcome = compare_over_seeds(runs(0, [0.50, 0.53, 0.49]), runs(1, [0.58, 0.61, 0.60]))
    reach = outcome.delta.high - outcome.delta.value
    assert outcome.design.p_value(reach) == pytest.approx(ALPHA, rel=1e-3)
    assert outcome.delta.value - outcome.delta.low == pytest.approx(reach)


def test_exchanging_the_sides_and_shifting_both_changes_nothing_but_the_sign():
    base, other = runs(0, [0.5, 0.6, 0.4]), runs(1, [0.5, 0.7])
    there, back = compare_over_seeds(base, other), compare_over_seeds(other + 3, base + 3)
    assert there.delta.value == pytest.approx(-back.delta.value)
    assert there.p_value == pytest.approx(back.p_value)
    assert there.delta.low == pytest.approx(-back.delta.high)


def test_the_parts_are_without_bias():
    """Of known variances, over many experiments: what neither seed nor problem explains counts once."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(2_000):
        sides = [
            rng.normal(0, 0.1, (3, 1)) + rng.normal(0, 0.4, (1, 50)) + rng.normal(0, 0.5, (3, 50)) for _ in range(2)
        ]
        found.append(spread_of(*sides))
    assert np.mean([spread.problems for spread in found]) == pytest.approx(2 * 0.4**2 / 50, rel=0.05)
    assert np.mean([spread.seeds for spread in found]) == pytest.approx(2 / 3 * (0.1**2 + 0.5**2 / 50), rel=0.05)


def test_difficulty_that_all_runs_share_cancels_out():
    difficulty = np.linspace(0, 5, 100)
    base, other = runs(0, [0.5, 0.6]), runs(1, [0.5, 0.7])
    plain, harder = compare_over_seeds(base, other), compare_over_seeds(base + difficulty, other + difficulty)
    assert harder.delta.high - harder.delta.low == pytest.approx(plain.delta.high - plain.delta.low)


def test_more_seeds_see_more():
    effects = [Spread(1e-4, 2 / seeds * 0.02**2, 2 * seeds - 2).detectable(ALPHA) for seeds in (2, 3, 5, 10)]
    assert effects == sorted(effects, reverse=True)
    spread = Spread(1e-4, 1e-4, 4)
    assert spread.power(spread.detectable(ALPHA), ALPHA) == pytest.approx(0.8, abs=1e-3)


def test_a_side_may_have_one_run_and_says_less_then():
    base, other = runs(0, [0.50, 0.52, 0.48]), runs(1, [0.60, 0.62, 0.58])
    widths = [
        outcome.delta.high - outcome.delta.low
        for outcome in (compare_over_seeds(base, other), compare_over_seeds(base[:1], other))
    ]
    assert widths[1] > widths[0]


def test_where_nothing_varies_nothing_can_be_said():
    outcome = compare_over_seeds(np.full((2, 5), 0.25), np.full((2, 5), 0.5))
    assert (outcome.delta.value, outcome.delta.low, outcome.p_value) == (0.25, None, 1.0)
    assert outcome.design.detectable(ALPHA) is None


def test_runs_whose_means_happen_to_be_equal_still_answered_otherwise():
    """Two seeds a side that solved as many problems each, but not the same ones: the difference has an interval."""
    base = np.array([[1, 1, 0, 0, 1, 0], [0, 0, 1, 1, 0, 1]], dtype=float)
    outcome = compare_over_seeds(base, base[::-1])
    assert outcome.delta.low < 0 < outcome.delta.high
    assert outcome.design.detectable(ALPHA) > 0.1
