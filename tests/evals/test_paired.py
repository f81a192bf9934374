"""Paired comparisons: exact where they can be, quiet where nothing was shown."""

from itertools import product
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from egpo.errors import InputError
from egpo.evals.intervals import SHARES
from egpo.evals.paired import mcnemar, paired_difference


def by_key(values):
    return {str(place): float(value) for place, value in enumerate(values)}


def difference(base, other, bounds=SHARES):
    return paired_difference(by_key(base), by_key(other), bounds=bounds)


def mcnemar_by_brute_force(lost, won):
    """All ways that the tosses could have fallen, at least as uneven as they did."""
    tosses = list(product([0, 1], repeat=lost + won))
    uneven = [toss for toss in tosses if abs(2 * sum(toss) - len(toss)) >= abs(won - lost)]
    return len(uneven) / len(tosses)


def test_mcnemar_counts_every_way_the_tosses_could_fall():
    for lost, won in product(range(7), repeat=2):
        assert mcnemar(lost, won) == pytest.approx(mcnemar_by_brute_force(lost, won))
    assert mcnemar(0, 0) == 1.0
    assert mcnemar(3000, 3300) == pytest.approx(0.00016, rel=0.1)  # large counts do not overflow


def test_mcnemar_gives_a_false_alarm_once_in_twenty_times_at_most():
    for tosses in range(1, 60):
        alarms = sum(comb(tosses, won) for won in range(tosses + 1) if mcnemar(tosses - won, won) < 0.05)
        assert alarms / 2**tosses <= 0.05


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60))
def test_turning_the_comparison_round_turns_the_verdict(pairs):
    base, other = zip(*pairs, strict=True)
    there, back = difference(base, other), difference(other, base)
    assert there.delta.value == pytest.approx(-back.delta.value)
    assert there.p_value == back.p_value
    assert (there.verdict, back.verdict) not in {("better", "better"), ("worse", "worse")}


def test_one_response_a_problem_is_decided_by_mcnemar():
    clear = difference([0] * 20 + [1] * 20, [1] * 30 + [1] * 10)
    assert (clear.test, clear.verdict) == ("McNemar", "better")
    assert clear.p_value == pytest.approx(2 * 0.5**20)
    # Five won, none lost: the interval is clear of zero, and yet tosses of a coin do that once in sixteen times.
    few = difference([0] * 40, [1] * 5 + [0] * 35)
    assert few.p_value == pytest.approx(2 * 0.5**5)
    assert few.verdict == "not distinguishable"


def test_several_responses_are_decided_by_the_paired_bootstrap():
    rng = np.random.default_rng(0)
    base = rng.binomial(8, 0.4, size=100) / 8
    better = np.minimum(1, base + rng.choice([0, 0.125, 0.25], size=100))
    found = difference(base, better)
    assert (found.test, found.verdict, found.p_value) == ("paired bootstrap", "better", None)
    assert difference(better, base).verdict == "worse"


def test_pairing_sees_what_two_intervals_would_not():
    """Problems differ much more than the models do: each model's own interval is wide, the difference's is not."""
    rng = np.random.default_rng(1)
    base = rng.beta(0.5, 0.5, size=200) * 0.9
    found = difference(base, base + 0.05 + rng.normal(0, 0.02, size=200), bounds=None)
    assert found.verdict == "better"
    assert found.delta.high - found.delta.low < 0.01


def test_the_same_model_twice_is_not_distinguishable():
    values = [0, 1, 0.5, 0.25]
    assert difference(values, values).verdict == "not distinguishable"
    assert difference([1, 0, 1], [1, 0, 1]).p_value == 1.0


def test_false_alarms_of_the_paired_bootstrap_are_rare():
    rng = np.random.default_rng(5)
    chances = rng.beta(1, 2, size=(400, 64))
    pairs = rng.binomial(4, chances) / 4, rng.binomial(4, chances) / 4
    verdicts = [difference(base, other).verdict for base, other in zip(*pairs, strict=True)]
    assert sum(verdict != "not distinguishable" for verdict in verdicts) <= 0.05 * 400 + 2.5 * 4.4


def test_values_without_known_bounds_have_those_that_were_seen():
    same_gain = difference([0.1] * 32, [0.9] * 32, bounds=None)
    assert same_gain.verdict == "better"
    assert 0.6 < same_gain.delta.low < same_gain.delta.high == pytest.approx(0.8)
    nothing_seen = difference([0.3] * 32, [0.3] * 32, bounds=None)
    assert (nothing_seen.delta.low, nothing_seen.verdict) == (None, "not distinguishable")


def test_only_problems_that_both_answered_count():
    base, other = {"a": 0.0, "b": 1.0, "c": float("nan")}, {"b": 0.0, "a": 0.0, "c": 1.0, "d": 1.0}
    found = paired_difference(base, other, bounds=SHARES)
    assert (found.base, found.other, found.delta.num_problems) == (0.5, 0.0, 2)
    with pytest.raises(InputError, match="same problems"):
        paired_difference({"a": 1.0}, {"b": 1.0})
