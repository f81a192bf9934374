"""The test over paired seeds and problems: exact where it can be, and no false alarms on simulated boards."""

import sys
from pathlib import Path

import numpy as np
import pytest

from egpo.comparisons.outcome import ALPHA, t_quantile, two_sided_p
from egpo.comparisons.paired_seeds import TwoWaySpread, compare_paired_seeds, mean_over_seeds, variance_terms

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import board_null

PLAIN = board_null.World("seeds 2 points", board_null.every(2))


@pytest.mark.parametrize("freedom", [1, 2, 4, 9])
def test_without_a_term_for_problems_it_is_students_t(freedom):
    spread = TwoWaySpread(4.0, 0.0, 0.0, freedom)
    for mean in (0.1, 2.0, 9.0, 80.0):
        assert spread.p_value(mean) == pytest.approx(two_sided_p(mean / 2, freedom), rel=1e-3)
    for alpha in (0.05, 0.003):
        assert spread.reach(alpha) == pytest.approx(2 * t_quantile(1 - alpha / 2, freedom), rel=1e-3)
        assert spread.p_value(spread.reach(alpha)) == pytest.approx(alpha, rel=1e-3)


def test_without_a_term_for_seeds_it_is_the_normal_test_over_problems():
    assert TwoWaySpread(0.0, 1.0, 1.0, 2).p_value(1.959964) == pytest.approx(0.05, rel=1e-4)


def test_equal_means_of_three_seeds_do_not_prove_anything():
    """Three seeds happen to gain the same two of 64 problems' worth: the test over problems decides."""
    rng = np.random.default_rng(0)
    base_SP = (rng.random((3, 64)) < 0.5).astype(float)
    other_SP = np.array([rng.permutation(row) for row in base_SP])
    for row in other_SP:
        row[np.flatnonzero(row == 0)[:2]] = 1.0
    test = compare_paired_seeds(base_SP, other_SP)
    assert variance_terms((other_SP - base_SP)[None]).seeds_T[0] == pytest.approx(0, abs=1e-12)
    assert test.delta.value == pytest.approx(2 / 64)
    assert test.p_value > 0.3


def test_nothing_varies():
    table = np.full((3, 8), 0.5)
    mean, spread = mean_over_seeds(table)
    assert (mean.value, mean.low, mean.high, spread.p_value(0.5), spread.detectable(ALPHA)) == (
        0.5, None, None, 1.0, None,
    )  # fmt: skip


def test_the_order_of_seeds_and_problems_does_not_matter():
    rng = np.random.default_rng(1)
    base_SP, other_SP = rng.random((4, 30)), rng.random((4, 30))
    seeds, problems = rng.permutation(4), rng.permutation(30)
    one = compare_paired_seeds(base_SP, other_SP)
    two = compare_paired_seeds(base_SP[seeds][:, problems], other_SP[seeds][:, problems])
    back = compare_paired_seeds(other_SP, base_SP)
    assert two.p_value == pytest.approx(one.p_value)
    assert back.p_value == pytest.approx(one.p_value)
    assert back.delta.value == pytest.approx(-one.delta.value)


@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize(
    "world",
    [board_null.World("calm baseline", (1.0, *board_null.every(5)[1:]), problems=64), board_null.WORLDS[3]],
    ids=["unequal seeds", "seeds matter much"],
)
def test_at_most_one_board_in_twenty_has_a_false_alarm(world, seeds):
    p_BK = board_null.p_values_of_boards(world, seeds, 300, "paired", 11)
    assert p_BK.shape == (300, board_null.PAIRS)
    assert board_null.any_false_alarm(p_BK, world) < 0.09


def test_a_test_over_problems_alone_would_not_do():
    p_BK = board_null.p_values_of_boards(PLAIN, 3, 100, "problems", 11)
    assert board_null.any_false_alarm(p_BK, PLAIN) > 0.5


def test_the_smallest_detectable_difference_is_found_in_four_of_five_experiments():
    rng = np.random.default_rng(5)
    seeds, problems, trials = 5, 128, 600
    run_sd, taste_sd, noise = 0.02, 0.15, 0.2
    terms = (run_sd**2 + noise**2 / problems) / seeds, taste_sd**2 / problems
    spread = TwoWaySpread(*terms, terms[1] + noise**2 / seeds / problems, seeds - 1)
    effect = spread.detectable(ALPHA)
    table_TSP = effect + rng.normal(0, run_sd, (trials, seeds, 1)) + rng.normal(0, taste_sd, (trials, 1, problems))
    table_TSP = table_TSP + rng.normal(0, noise, (trials, seeds, problems))
    found = [mean_over_seeds(table_SP) for table_SP in table_TSP]
    assert 0.74 < np.mean([spread.p_value(mean.value) < ALPHA for mean, spread in found]) < 0.88
    assert np.mean([mean.low <= effect <= mean.high for mean, _ in found]) > 0.93
