"""Compares two models on the same problems, paired by problem: difference, 95 % interval and verdict.

`compare` compares accuracy, pass@k and score of two evaluations; `paired_difference` compares one value per problem.
In the names of arrays, P is the number of problems.
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
    """The difference of one figure between two models, paired by problem.

    `base` and `other` are the two models' means over the problems for which both have a value; `delta` is the mean of
    other minus base, with its interval. `p_value` is that of McNemar's test; None if the paired bootstrap was used.
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
    """Compare two models by one value per problem; `base` and `other` map each problem's key to the model's value.

    The verdict is "better" or "worse" only if the interval of the paired bootstrap excludes 0. If all values are 0 or 1
    (one response per problem), McNemar's exact test must also be significant. `bounds` are the least and the greatest
    possible value; None: the least and the greatest that occur.
    """
    keys = [key for key, value in base.items() if key in other and not math.isnan(value) and not math.isnan(other[key])]
    if not keys:
        fix = "evaluate both models on the same problems"
        raise InputError("the two models have no judged problem in common", where="comparison", fix=fix)
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
    """Return the p-value of McNemar's exact two-sided test (McNemar 1947, in its binomial form).

    `num_lost` problems are solved only by the base model, `num_won` only by the other. The p-value is the probability
    of numbers at least this unequal if each of these problems were equally likely to be solved by either model. It is 1
    if both numbers are 0.
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
    """The comparison of two models on the same problems.

    `base` and `other` are the models' names. `rows` holds the difference of each figure, by its name. For
    `num_problems` problems, both models have a judged response.
    """

    base: str
    other: str
    num_problems: int
    rows: dict[str, PairedDifference]


def compare(base: Judged, other: Judged, ks: Iterable[int] = (1,), seed: int = 0) -> Comparison:
    """Compare accuracy, pass@k and mean score of two models, on the problems that both have answered."""
    tallies = tally_problems(base.samples), tally_problems(other.samples)
    rows = {}
    for k in sorted({1, *ks}):
        values = [pass_at_k_by_problem(tally, k) for tally in tallies]
        rows[ACCURACY if k == 1 else f"pass@{k}"] = paired_difference(*values, seed=seed, bounds=SHARES)
    rows[SCORE] = paired_difference(*map(scores_by_problem, tallies), seed=seed)
    return Comparison(base.label, other.label, rows[ACCURACY].delta.num_problems, rows)
