"""One run each: the laws of the test over problems."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from egpo.comparisons.mcnemar import BOOTSTRAP, MCNEMAR, compare_over_problems
from egpo.comparisons.outcome import ALPHA
from egpo.evals.intervals import SHARES

QUARTERS = st.integers(0, 4).map(lambda count: count / 4)
PAIRS = st.lists(st.tuples(QUARTERS, QUARTERS), min_size=20, max_size=60)


def compared(pairs, bounds=SHARES):
    base_P, other_P = np.array(pairs, dtype=float).T
    return compare_over_problems(base_P, other_P, bounds=bounds, num_resamples=500)


@given(PAIRS)
def test_the_p_value_and_the_interval_of_the_bootstrap_say_the_same(pairs):
    outcome = compared(pairs)
    if outcome.method == BOOTSTRAP and abs(outcome.p_value - ALPHA) > 0.002:
        assert (outcome.p_value < ALPHA) == outcome.is_clear_of_zero


@given(PAIRS)
def test_turning_it_round_turns_the_difference(pairs):
    there, back = compared(pairs), compared([pair[::-1] for pair in pairs])
    assert there.delta.value == pytest.approx(-back.delta.value)
    assert there.base + there.delta.value == pytest.approx(back.base)
    assert there.design == back.design


def test_a_model_against_itself_is_not_distinguishable():
    outcome = compared([(0.25, 0.25), (1.0, 1.0), (0.5, 0.5)])
    assert (outcome.p_value, outcome.delta.value, outcome.design.detectable(ALPHA)) == (1.0, 0.0, None)
    assert not outcome.is_clear_of_zero


def test_a_difference_that_every_problem_has_is_as_sure_as_problems_are_many():
    """Equal differences of other values, which differ in their last bits."""
    few, many = ([(place / 10, place / 10 + 0.2) for place in range(8)] * times for times in (1, 5))
    assert compared(few).p_value == pytest.approx(2 * (1 - 0.2 / 1.2) ** 8)
    assert compared(few).p_value > ALPHA > compared(many).p_value
    assert not compared(few).is_clear_of_zero
    assert compared(many).is_clear_of_zero


def test_right_or_wrong_is_mcnemars():
    assert compared([(0, 1)] * 6 + [(1, 1)] * 20).method == MCNEMAR
    assert compared([(0, 1)] * 6 + [(1, 0.75)] * 20).method == BOOTSTRAP


def test_pairing_cancels_the_difficulty_that_both_share():
    rng = np.random.default_rng(0)
    base = rng.random(200)
    gain = rng.choice([0.0, 0.1], size=200)
    paired = compare_over_problems(base, base + gain)
    shuffled = compare_over_problems(rng.permutation(base), base + gain)
    assert paired.design.detectable(ALPHA) < shuffled.design.detectable(ALPHA) / 5
