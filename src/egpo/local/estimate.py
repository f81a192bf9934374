"""From measurements to advantages, for the rows that are trained on. B rows."""

from dataclasses import dataclass

import torch
from torch import Tensor

from egpo.advantages import Signals, estimator_named
from egpo.advantages.signals import Metrics
from egpo.config.schema import Algorithm
from egpo.local.collect import Batch
from egpo.local.measure import Measures


@dataclass(frozen=True, eq=False)
class Estimate:
    """`advantage_B` is NaN for the rows that are not trained on; `rows` are those that are."""

    advantage_B: Tensor
    rows: list[int]
    metrics: Metrics


def estimate(batch: Batch, measures: Measures, algorithm: Algorithm) -> Estimate:
    """By the recipe's estimator. A batch without a row to train on has no advantage, and no metrics of one."""
    metrics: Metrics = {}
    advantage_B = torch.full((len(batch.rollouts),), torch.nan)
    kept_B = batch.kept_B
    if bool(kept_B.any()):
        signals = _signals(batch, measures, algorithm)
        advantage_B[kept_B] = estimator_named(algorithm.estimator)(signals, **algorithm.settings, metrics=metrics)
    return Estimate(advantage_B, kept_B.nonzero()[:, 0].tolist(), metrics)


def _signals(batch: Batch, measures: Measures, algorithm: Algorithm) -> Signals:
    """What the estimator asks for, of the kept rows."""
    kept_B, segment = batch.kept_B, algorithm.segment
    correct_B = torch.tensor([verdict.correct for verdict in batch.verdicts])
    return Signals(
        reward_B=batch.reward_B[kept_B],
        group_B=batch.rollouts.problem_B[kept_B],
        entropy_B=None if segment is None else measures.entropy[segment][kept_B],
        correct_B=correct_B[kept_B],
        nll_B=None if segment is None else measures.nll[segment][kept_B],
    )
