"""The rewards of each prompt's responses: what a group's gradient is made of. P prompts."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from statistics import variance

import numpy as np

from egpo.evals.samples import SampleRecord

Rewards = Mapping[str, Counter[float]]
"""By the prompt's key: how often its responses earned each reward."""


def count_rewards(samples: Iterable[SampleRecord]) -> dict[str, Counter[float]]:
    """Of the responses that were judged, and given a number. In float32, as in training: rewards that agree there
    agree. A prompt with none is left out."""
    counts: dict[str, Counter[float]] = {}
    for sample in samples:
        if not sample.failed and math.isfinite(sample.score):
            counts.setdefault(sample.problem, Counter())[float(np.float32(sample.score))] += 1
    return counts


def reward_variances(rewards: Rewards) -> dict[str, float]:
    """Of each prompt's rewards, with n - 1 below: for right or wrong it is p (1 - p) on average, whatever n is. NaN
    for a prompt with a single response."""
    return {key: variance(counts.elements()) if counts.total() > 1 else math.nan for key, counts in rewards.items()}
