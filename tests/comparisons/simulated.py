"""Experiments whose truth is known. T trials, S seeds, P problems."""

import numpy as np

from egpo.comparisons.outcome import ALPHA


def chances_TP(rng, trials, problems, accuracy=0.5):
    """Of being solved: problems of differing difficulty."""
    return rng.beta(2 * accuracy, 2 * (1 - accuracy), size=(trials, problems))


def responses(rng, chances, n):
    """The share of n responses that are right, for each problem of each trial."""
    return rng.binomial(n, chances) / n


def trained_TSP(rng, logit_T1P, seeds, n, *, effect=0.0, seed_sd=0.2, taste_sd=0.5):
    """Runs of one condition: seeds move the whole run, the condition has a taste in problems, and each run its own."""
    trials, _, problems = logit_T1P.shape
    of_seed = rng.normal(0, seed_sd, size=(trials, seeds, 1))
    of_condition = rng.normal(0, taste_sd, size=(trials, 1, problems))
    of_run = rng.normal(0, 0.3, size=(trials, seeds, problems))
    chances = 1 / (1 + np.exp(-(logit_T1P + of_seed + of_condition + of_run)))
    return rng.binomial(n, np.clip(chances + effect, 0, 1)) / n


def alarms(outcomes):
    """The share of trials in which a difference is claimed."""
    return np.mean([outcome.p_value < ALPHA and outcome.is_clear_of_zero for outcome in outcomes])


def coverage(outcomes, truth):
    """The share of intervals that hold the truth."""
    held = [outcome.delta.low <= truth <= outcome.delta.high for outcome in outcomes]
    return np.mean(held)
