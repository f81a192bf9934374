"""McNemar's mid-p test: against brute force, its rate of false alarms exactly, and its power."""

from itertools import product
from math import comb

import numpy as np
import pytest

from egpo.comparisons.mcnemar import Discordance, mid_p
from egpo.evals.paired import mcnemar


def test_half_of_the_split_that_was_seen_is_taken_off_the_exact_p():
    for lost, won in product(range(8), repeat=2):
        if lost != won:
            assert mid_p(lost, won) == pytest.approx(mcnemar(lost, won) - comb(lost + won, won) / 2 ** (lost + won))
    assert mid_p(3, 3) == mid_p(0, 0) == 1.0
    assert mid_p(3000, 3300) == pytest.approx(0.00016, rel=0.1)  # large counts do not overflow


def test_sides_may_be_exchanged():
    assert all(mid_p(lost, won) == mid_p(won, lost) for lost, won in product(range(12), repeat=2))


@pytest.mark.parametrize("tosses", [25, 40, 80, 160, 500])
def test_false_alarms_are_five_in_a_hundred_or_near(tosses):
    """Exactly, given so many problems that differ; the exact test has 2.6 to 4.4 % of them."""
    alarms = sum(comb(tosses, won) for won in range(tosses + 1) if mid_p(tosses - won, won) < 0.05)
    assert 0.03 < alarms / 2**tosses < 0.06


def test_power_is_what_drawing_says():
    rng = np.random.default_rng(0)
    lost, won, _ = rng.multinomial(150, [0.05, 0.15, 0.8], size=20_000).T
    seen = np.mean([mid_p(a, b) < 0.05 for a, b in zip(lost.tolist(), won.tolist(), strict=True)])
    assert Discordance(0.2, 150).power(0.1, 0.05) == pytest.approx(seen, abs=0.01)


def test_more_is_detectable_with_more_problems_and_fewer_that_differ():
    design = Discordance(0.2, 200)
    assert design.power(design.detectable(0.05), 0.05) == pytest.approx(0.8, abs=1e-3)
    assert Discordance(0.2, 800).detectable(0.05) < design.detectable(0.05) < Discordance(0.4, 200).detectable(0.05)
    assert design.detectable(0.01) > design.detectable(0.05)


def test_where_nothing_differed_or_too_few_are_there_nothing_can_be_said():
    assert Discordance(0.0, 200).detectable(0.05) is None
    assert Discordance(0.5, 4).detectable(0.05) is None  # four wins of four: p = 0.0625


def test_a_hundred_thousand_problems_take_no_matrix_of_them():
    """A thousand times as many problems see a difference that is the root of a thousand times as small."""
    few, many = (Discordance(0.5, problems).detectable(0.05) for problems in (100, 100_000))
    assert few / many == pytest.approx(1000**0.5, rel=0.03)
