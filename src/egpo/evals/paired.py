"""Compares two models on the same problems, paired by problem: difference, 95 % interval and verdict. P problems.

`compare` does this for every figure of two evaluations; `paired_difference` for one value per problem.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from egpo.errors import InputError
from egpo.evals.figures import pass_at_k_by_problem, scores_by_problem, tally_problems
from egpo.evals.intervals import LEVEL, SHARES, Estimate, mean_with_interval
from egpo.evals.responses import SampleRecord

Finding = Literal["better", "worse", "not distinguishable"]
Test = Literal["McNemar", "paired bootstrap"]


@dataclass(frozen=True)
class PairedDifference:
    """`base` and `other` are means over the problems for which both have a value; `delta` is other minus base.

    `p_value` is that of McNemar's test; None if the paired bootstrap was used.
    """

    base: float
    other: float
    delta: Estimate
    test: Test
    verdict: Finding
    p_value: float | None = None


def paired_difference(
    base: Mapping[str, float],
    other: Mapping[str, float],
    *,
    seed: int = 0,
    bounds: tuple[float, float] | None = None,
) -> PairedDifference:
    """Compare one value per problem key.

    If all values are 0 or 1 (one response per problem), McNemar's exact test decides; otherwise the interval of the
    paired bootstrap. The verdict is "better" or "worse" only if the interval also excludes 0. `bounds` are the least
    and greatest possible values; by default those that occur.
    """
    keys = [key for key, value in base.items() if key in other and not math.isnan(value) and not math.isnan(other[key])]
    if not keys:
        raise InputError("no problem was answered by both", where="comparison", fix="evaluate both on the same task")
    base_P, other_P = np.array([base[key] for key in keys]), np.array([other[key] for key in keys])
    low, high = bounds or (min(base_P.min(), other_P.min()), max(base_P.max(), other_P.max()))
    delta = mean_with_interval(other_P - base_P, seed=seed, bounds=(low - high, high - low) if low < high else None)
    assert delta is not None
    p_value = None
    if np.isin([base_P, other_P], SHARES).all():
        p_value = mcnemar(int((base_P > other_P).sum()), int((other_P > base_P).sum()))
    return PairedDifference(
        base=float(base_P.mean()),
        other=float(other_P.mean()),
        delta=delta,
        test="paired bootstrap" if p_value is None else "McNemar",
        verdict=_verdict(delta, p_value),
        p_value=p_value,
    )


def mcnemar(num_lost: int, num_won: int) -> float:
    """Return the p-value of McNemar's exact two-sided test; 1 if no problem is solved by exactly one of the models.

    It is the probability of a split at least this uneven if each such problem were a fair coin toss. (McNemar 1947, in
    its binomial form.)
    """
    tosses, fewer = num_lost + num_won, min(num_lost, num_won)
    tail = sum(math.comb(tosses, count) for count in range(fewer + 1))
    return float(min(1.0, 2 * tail / 2**tosses))


def _verdict(delta: Estimate, p_value: float | None) -> Finding:
    if p_value is not None and p_value >= 1 - LEVEL:
        return "not distinguishable"
    if delta.low is not None and delta.low > 0:
        return "better"
    if delta.high is not None and delta.high < 0:
        return "worse"
    return "not distinguishable"


ACCURACY = "accuracy"
SCORE = "score"


class Judged(Protocol):
    """A model's name and its judged responses, for example an `Evaluation`."""

    @property
    def label(self) -> str: ...
    @property
    def samples(self) -> Sequence[SampleRecord]: ...


@dataclass(frozen=True)
class Comparison:
    """`rows` by the name of the figure; `num_problems` problems have a judged response of both models."""

    base: str
    other: str
    num_problems: int
    rows: dict[str, PairedDifference]


def compare(base: Judged, other: Judged, ks: Iterable[int] = (1,), seed: int = 0) -> Comparison:
    """Compare accuracy, pass@k and mean score. Problems that only one model answered do not count."""
    tallies = tally_problems(base.samples), tally_problems(other.samples)
    rows = {}
    for k in sorted({1, *ks}):
        values = [pass_at_k_by_problem(tally, k) for tally in tallies]
        rows[ACCURACY if k == 1 else f"pass@{k}"] = paired_difference(*values, seed=seed, bounds=SHARES)
    rows[SCORE] = paired_difference(*map(scores_by_problem, tallies), seed=seed)
    return Comparison(base.label, other.label, rows[ACCURACY].delta.num_problems, rows)
