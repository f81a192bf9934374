"""Many comparisons at once: one of twenty cries wolf, so each must be clearer.

What was found, in words.

What a comparison comes to: every output is made of this.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from egpo.comparisons.fairness import Inequality
from egpo.comparisons.outcome import ALPHA, Outcome


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values: the chance that any of them cries wolf stays below the level that they are held to.

    The i-th smallest of m is multiplied by m - i + 1, is no less than the one before it, and 1 at most. One p-value
    alone stays as it is. (Holm 1979)
    """
    count, floor = len(p_values), 0.0
    adjusted = [0.0] * count
    for rank, place in enumerate(sorted(range(count), key=lambda place: p_values[place])):
        floor = max(floor, min(1.0, (count - rank) * p_values[place]))
        adjusted[place] = floor
    return adjusted


Finding = Literal["better", "worse", "not distinguishable"]


def finding_of(outcome: Outcome, adjusted_p: float) -> Finding:
    """`better` and `worse` (said of the other) where the corrected p-value and the interval agree that it is so."""
    if adjusted_p >= ALPHA or not outcome.is_clear_of_zero:
        return "not distinguishable"
    return "better" if outcome.delta.value > 0 else "worse"


@dataclass(frozen=True)
class Words:
    """The two sides by name, how many comparisons were made, and whether figures are shares, read in points."""

    base: str
    other: str
    num_tests: int = 1
    is_share: bool = True

    def verdict(self, outcome: Outcome, adjusted_p: float, detectable: float | None) -> str:
        """`... not distinguishable: difference +0.2 points [-3.1, +3.5]; this design could see 4.7 points`."""
        finding, difference = finding_of(outcome, adjusted_p), self._difference(outcome)
        if finding != "not distinguishable":
            return f"{self.other} is {finding} than {self.base}: difference {difference}, p {p_text(adjusted_p)}"
        among = f" among {self.num_tests} comparisons" if self.num_tests > 1 and outcome.is_clear_of_zero else ""
        told = f"{self.base} and {self.other} are not distinguishable{among}"
        return f"{told}: difference {difference}; {self._sight(detectable)}"

    def _difference(self, outcome: Outcome) -> str:
        delta, unit = outcome.delta, " points" if self.is_share else ""
        value = f"{signed(delta.value, self.is_share)}{unit}"
        if delta.low is None or delta.high is None:
            return f"{value}, without an interval"
        return f"{value} [{signed(delta.low, self.is_share)}, {signed(delta.high, self.is_share)}]"

    def _sight(self, detectable: float | None) -> str:
        if detectable is None:
            return "what this design could see cannot be said"
        return f"this design could see {amount(detectable, self.is_share)}"


def signed(value: float, is_share: bool) -> str:
    """`+1.5` of a share in points, `+0.015` of a score; nothing is `+0.0`."""
    text = f"{100 * value:+.1f}" if is_share else f"{value:+.3f}"
    return text.replace("-", "+") if float(text) == 0 else text


def amount(value: float, is_share: bool) -> str:
    return f"{100 * value:.1f} points" if is_share else f"{value:.3f}"


def p_text(p_value: float) -> str:
    return "< 0.001" if p_value < 0.001 else f"= {p_value:.2g}"


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
