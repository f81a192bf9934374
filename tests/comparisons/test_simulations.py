"""The comparison on experiments whose truth is known: false alarms, coverage, power.

EGPO_TEST_TRIALS=20 has twenty times as many trials.
"""

import os
from functools import cache

import numpy as np
import pytest

from egpo.comparisons.mcnemar import BOOTSTRAP, MCNEMAR, Discordance, compare_over_problems
from egpo.comparisons.outcome import ALPHA, TDesign
from egpo.comparisons.seeds import Spread, compare_over_seeds
from egpo.evals.intervals import SHARES
from tests.comparisons.simulated import alarms, chances_TP, coverage, responses, trained_TSP

TIMES = int(os.environ.get("EGPO_TEST_TRIALS", "1"))
NEAR_5 = (0.04, 0.06)
NEAR_80 = (0.77, 0.83)


def over_problems(base_TP, other_TP, bounds=SHARES):
    pairs = zip(base_TP, other_TP, strict=True)
    return [
        compare_over_problems(base_P, other_P, bounds=bounds, seed=trial, num_resamples=600)
        for trial, (base_P, other_P) in enumerate(pairs)
    ]


def over_right_and_wrong(base_TP, other_TP):
    """The same for single responses, of which only the numbers lost and won matter: each split is judged once."""
    lost_T, won_T = (base_TP > other_TP).sum(1).tolist(), (other_TP > base_TP).sum(1).tolist()
    return [_of_split(lost, won, base_TP.shape[1]) for lost, won in zip(lost_T, won_T, strict=True)]


@cache
def _of_split(lost, won, problems):
    sizes = [lost, won, problems - lost - won]
    sides = (np.repeat(values, sizes).astype(float) for values in ([1, 0, 1], [0, 1, 1]))
    return compare_over_problems(*sides, bounds=SHARES, num_resamples=3_000)


def over_seeds(base_TSP, other_TSP):
    return [compare_over_seeds(base_SP, other_SP) for base_SP, other_SP in zip(base_TSP, other_TSP, strict=True)]


def test_equal_models_are_told_apart_in_five_of_a_hundred_comparisons_of_single_responses():
    rng = np.random.default_rng(1)
    chances = chances_TP(rng, 20_000 * TIMES, 200)
    outcomes = over_right_and_wrong(responses(rng, chances, 1), responses(rng, chances, 1))
    assert {outcome.method for outcome in outcomes} == {MCNEMAR}
    assert NEAR_5[0] < alarms(outcomes) < NEAR_5[1]
    assert 0.94 < coverage(outcomes, 0.0) < 0.96


def test_equal_models_are_told_apart_in_five_of_a_hundred_comparisons_of_scores():
    rng = np.random.default_rng(4)
    chances = chances_TP(rng, 3_000 * TIMES, 200)
    outcomes = over_problems(responses(rng, chances, 4), responses(rng, chances, 4))
    assert {outcome.method for outcome in outcomes} == {BOOTSTRAP}
    assert NEAR_5[0] < alarms(outcomes) < NEAR_5[1]
    assert 0.94 < coverage(outcomes, 0.0) < 0.96


def test_models_that_are_equal_on_average_only_are_too():
    """Each is better at some problems: only over problems are they equal. pass@2 of four responses."""
    rng = np.random.default_rng(10)
    wrong = [4 - rng.binomial(4, chances_TP(rng, 3_000 * TIMES, 128)) for _ in range(2)]
    base, other = (1 - count * (count - 1) / 12 for count in wrong)
    assert NEAR_5[0] < alarms(over_problems(base, other)) < NEAR_5[1]


def test_intervals_hold_a_true_difference():
    rng = np.random.default_rng(3)
    chances = 0.8 * chances_TP(rng, 3_000 * TIMES, 100)
    outcomes = over_problems(responses(rng, chances, 4), responses(rng, chances + 0.1, 4))
    assert 0.94 < coverage(outcomes, 0.1) < 0.96


@pytest.mark.parametrize(("seeds", "seed_sd"), [(3, 0.3), (5, 0.15)])
def test_seeds_of_equal_methods_are_told_apart_in_five_of_a_hundred_comparisons(seeds, seed_sd):
    """Seeds move a run by 0.3 and 0.15 in the logit: about 5 and 2.7 points of accuracy."""
    rng = np.random.default_rng(seeds)
    logit = rng.normal(0, 1.5, size=(3_000 * TIMES, 1, 200))
    base, other = (trained_TSP(rng, logit, seeds, 4, seed_sd=seed_sd) for _ in range(2))
    outcomes = over_seeds(base, other)
    assert NEAR_5[0] < alarms(outcomes) < NEAR_5[1]
    assert 0.94 < coverage(outcomes, 0.0) < 0.96


@pytest.mark.parametrize("seed_sd", [0.0, 0.1, 0.5])
@pytest.mark.parametrize(("base_seeds", "other_seeds"), [(2, 2), (1, 3), (2, 5)])
def test_however_much_seeds_matter_and_however_few_they_are_false_alarms_are_five_of_a_hundred(
    base_seeds, other_seeds, seed_sd
):
    rng = np.random.default_rng(base_seeds)
    logit = rng.normal(0, 1.5, size=(4_000 * TIMES, 1, 128))
    base = trained_TSP(rng, logit, base_seeds, 2, seed_sd=seed_sd)
    other = trained_TSP(rng, logit, other_seeds, 2, seed_sd=seed_sd)
    outcomes = over_seeds(base, other)
    assert NEAR_5[0] < alarms(outcomes) < NEAR_5[1]
    assert 0.94 < coverage(outcomes, 0.0) < 0.96


def test_one_run_each_says_nothing_of_seeds():
    """Seeds move accuracy by 2.7 points: equal methods are then told apart by their problems in 44 % of cases."""
    rng = np.random.default_rng(8)
    logit = rng.normal(0, 1.5, size=(400, 1, 200))
    base, other = (trained_TSP(rng, logit, 1, 8, seed_sd=0.15, taste_sd=0.1)[:, 0] for _ in range(2))
    assert 0.35 < alarms(over_problems(base, other)) < 0.55


def test_mcnemar_sees_what_it_is_said_to_see():
    rng = np.random.default_rng(1)
    effect = Discordance(0.25, 200).detectable(ALPHA)
    shares = [(0.25 - effect) / 2, (0.25 + effect) / 2, 0.75]
    splits = rng.multinomial(200, shares, size=2_000 * TIMES).tolist()
    outcomes = [_of_split(lost, won, 200) for lost, won, _ in splits]
    assert NEAR_80[0] < alarms(outcomes) < NEAR_80[1]
    assert 0.94 < coverage(outcomes, effect) < 0.96


def test_the_bootstrap_sees_what_it_is_said_to_see():
    rng = np.random.default_rng(2)
    effect = TDesign(0.3 / np.sqrt(100), 99).detectable(ALPHA)
    base, steps = rng.integers(11, size=(2_000 * TIMES, 100)) / 10, rng.choice([-0.3, 0.3], size=(2_000 * TIMES, 100))
    outcomes = over_problems(base, base + effect + steps, bounds=None)
    assert NEAR_80[0] < alarms(outcomes) < NEAR_80[1]
    stated = np.median([outcome.design.detectable(ALPHA) for outcome in outcomes[:20]])
    assert stated == pytest.approx(effect, rel=0.1)


@pytest.mark.parametrize(("run_sd", "taste_sd"), [(0.02, 0.3), (0.04, 0.1)])
def test_several_seeds_see_what_they_are_said_to_see(run_sd, taste_sd):
    """Four seeds each on 100 problems: run means scatter by `run_sd`, a problem's difference by sqrt(2) `taste_sd`."""
    rng = np.random.default_rng(4)
    seeds, problems, noise, trials = 4, 100, 0.2, 1_500 * TIMES
    spread = Spread(2 * taste_sd**2 / problems, 2 / seeds * (run_sd**2 + noise**2 / problems), 2 * seeds - 2)
    effect = spread.detectable(ALPHA)

    def condition(mean):
        of_run, taste = rng.normal(mean, run_sd, (trials, seeds, 1)), rng.normal(0, taste_sd, (trials, 1, problems))
        return of_run + taste + rng.normal(0, noise, (trials, seeds, problems))

    outcomes = over_seeds(condition(0.5), condition(0.5 + effect))
    assert NEAR_80[0] < alarms(outcomes) < NEAR_80[1]
    assert 0.94 < coverage(outcomes, effect) < 0.96
