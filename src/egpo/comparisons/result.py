"""What a comparison comes to: every output is made of this."""

from collections.abc import Sequence
from dataclasses import dataclass

from egpo.comparisons.fairness import Inequality
from egpo.comparisons.holm import holm
from egpo.comparisons.outcome import ALPHA, Outcome
from egpo.comparisons.verdicts import Finding, Words, finding_of


@dataclass(frozen=True)
class RunRow:
    """A run's mean, and the means of its evaluations with their standard deviation, as far as they are known."""

    run: str
    seed: int | None
    mean: float
    num_evaluations: int
    evaluations: Sequence[float]
    evaluation_sd: float | None


@dataclass(frozen=True)
class ConditionRow:
    """The mean of a condition's runs, of one metric. A share is read in percent."""

    label: str
    metric: str
    is_share: bool
    mean: float
    runs: Sequence[RunRow]


@dataclass(frozen=True)
class Contrast:
    """Two conditions: `delta` is other minus base. `adjusted_p` is corrected for all contrasts of the comparison (Holm)
    and decides; the interval is that of this contrast alone. `detectable` is at the corrected level; None also where a
    share would have to pass 1. Shares are in [0, 1]."""

    metric: str
    is_share: bool
    base: str
    other: str
    base_mean: float
    other_mean: float
    delta: float
    low: float | None
    high: float | None
    p_value: float
    adjusted_p: float
    detectable: float | None
    method: str
    num_problems: int
    finding: Finding
    verdict: str


@dataclass(frozen=True)
class Comparison:
    """`unfair` is what the runs do not share and should, where that was allowed."""

    title: str
    conditions: Sequence[ConditionRow]
    contrasts: Sequence[Contrast]
    unfair: Sequence[Inequality] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Pair:
    """Two conditions by their labels, and the metric that they are compared in."""

    metric: str
    base: str
    other: str
    is_share: bool = True


def contrasts_of(pairs: Sequence[Pair], outcomes: Sequence[Outcome]) -> list[Contrast]:
    """All of them are one family: what is looked at together is corrected together."""
    adjusted = holm([outcome.p_value for outcome in outcomes])
    return [_contrast(*found, len(pairs)) for found in zip(pairs, outcomes, adjusted, strict=True)]


def _contrast(pair: Pair, outcome: Outcome, adjusted_p: float, num_tests: int) -> Contrast:
    delta, detectable = outcome.delta, outcome.design.detectable(ALPHA / num_tests)
    if pair.is_share and detectable is not None and detectable > 1:
        detectable = None  # there is no such difference
    words = Words(pair.base, pair.other, num_tests, pair.is_share)
    return Contrast(
        metric=pair.metric,
        is_share=pair.is_share,
        base=pair.base,
        other=pair.other,
        base_mean=outcome.base,
        other_mean=outcome.base + delta.value,
        delta=delta.value,
        low=delta.low,
        high=delta.high,
        p_value=outcome.p_value,
        adjusted_p=adjusted_p,
        detectable=detectable,
        method=outcome.method,
        num_problems=delta.num_problems,
        finding=finding_of(outcome, adjusted_p),
        verdict=words.verdict(outcome, adjusted_p, detectable),
    )
