"""Two models on the same problems: the difference, its interval, and whether it can be told from chance. P problems.

Base -> trained: every figure of two evaluations, paired by problem.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from egpo.errors import InputError
from egpo.evals.intervals import LEVEL, SHARES, Estimate, mean_with_interval
from egpo.evals.samples import SampleRecord, pass_at_k_by_problem, scores_by_problem, tally_problems

Finding = Literal["better", "worse", "not distinguishable"]
Test = Literal["McNemar", "paired bootstrap"]


@dataclass(frozen=True)
class PairedDifference:
    """`base` and `other` are means over the problems that both have a value for; `delta` is other minus base.

    `p_value` is that of McNemar's test, where it is the one in force.
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
    """Of one value for each problem's key. Values that are all 0 or 1 are one response a problem, right or wrong: then
    McNemar's exact test decides. Otherwise the interval of the paired bootstrap does.

    "better" and "worse" are said only where the interval is clear of zero as well. `bounds` are the values' own, or the
    least and the greatest that were seen.
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
    """Exact and two-sided: how probable so uneven a split of the problems that only one model got right would be, were
    each a toss of a coin. 1 where there are none. (McNemar 1947, in its binomial form.)"""
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
    """A model's name and its judged responses: an `Evaluation` is one."""

    @property
    def label(self) -> str: ...
    @property
    def samples(self) -> Sequence[SampleRecord]: ...


@dataclass(frozen=True)
class Comparison:
    """`rows` by the figure's name; `num_problems` have a judged response of both models."""

    base: str
    other: str
    num_problems: int
    rows: dict[str, PairedDifference]


def compare(base: Judged, other: Judged, ks: Iterable[int] = (1,), seed: int = 0) -> Comparison:
    """Accuracy, pass@k and mean score. Problems that only one of them answered do not count."""
    tallies = tally_problems(base.samples), tally_problems(other.samples)
    rows = {}
    for k in sorted({1, *ks}):
        values = [pass_at_k_by_problem(tally, k) for tally in tallies]
        rows[ACCURACY if k == 1 else f"pass@{k}"] = paired_difference(*values, seed=seed, bounds=SHARES)
    rows[SCORE] = paired_difference(*map(scores_by_problem, tallies), seed=seed)
    return Comparison(base.label, other.label, rows[ACCURACY].delta.num_problems, rows)
