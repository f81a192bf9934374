"""The result of a comparison: rows of conditions, contrasts with Holm's correction for multiple tests, and verdicts.

Every output (table, JSON, Markdown, CSV, report) is made from `Comparison`.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from egpo.comparisons.fairness import Inequality
from egpo.comparisons.outcome import ALPHA, POWER, DifferenceTest

Place = TypeVar("Place", bound=Hashable)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values with Holm's correction for multiple tests (Holm 1979).

    The probability of any false positive then stays below the level. The i-th smallest of m p-values is multiplied by
    m - i + 1; the result is at least the one before it, and at most 1. A single p-value is unchanged.
    """
    count, floor = len(p_values), 0.0
    adjusted = [0.0] * count
    for rank, place in enumerate(sorted(range(count), key=lambda place: p_values[place])):
        floor = max(floor, min(1.0, (count - rank) * p_values[place]))
        adjusted[place] = floor
    return adjusted


def holm_in_pairs(
    first: Mapping[Place, float], second: Mapping[Place, float], num_places: int
) -> dict[tuple[Place, int], float]:
    """Return adjusted p-values of two claims per place, where the second follows only from the first: `(place, 1)` and
    `(place, 2)`. With first claims alone, and all places given, it is Holm's method.

    The second claim inherits the share of the first (Bretz et al. 2009, doi:10.1002/sim.3495): of m places with an
    open claim each has 1/m of the level, and uses it for its first claim until that is decided. The probability of any
    false positive stays below the level. Places without a p-value stay open.
    """
    adjusted: dict[tuple[Place, int], float] = {}
    active = dict.fromkeys(first, 1)
    p_of = {1: first, 2: second}
    num_open, floor = num_places, 0.0
    while active:
        place = min(active, key=lambda one: p_of[active[one]][one])
        claim = active.pop(place)
        floor = max(floor, min(1.0, num_open * p_of[claim][place]))
        adjusted[place, claim] = floor
        if claim == 1 and place in second:
            active[place] = 2
        else:
            num_open -= 1
    return adjusted


Finding = Literal["better", "worse", "not distinguishable"]
NOT_DISTINGUISHABLE: Finding = "not distinguishable"


def finding_of(test: DifferenceTest, adjusted_p: float) -> Finding:
    """Return whether the other condition is better or worse than the base condition, or not distinguishable from it.

    Better or worse requires a corrected p-value below 0.05 and a 95 % interval that excludes 0.
    """
    if adjusted_p >= ALPHA or not test.is_clear_of_zero:
        return NOT_DISTINGUISHABLE
    return "better" if test.delta.value > 0 else "worse"


@dataclass(frozen=True)
class VerdictText:
    """The formatter of the verdict on two conditions. Differences of shares are in percentage points."""

    base: str
    other: str
    num_tests: int = 1
    is_share: bool = True

    def verdict(self, test: DifferenceTest, adjusted_p: float, detectable: float | None) -> str:
        """Return the verdict in one sentence.

        For example: A and B are not distinguishable: difference +0.2 points [-3.1, +3.5]; smallest detectable
        difference: 4.7 points (80 % power)
        """
        finding, difference = finding_of(test, adjusted_p), self._difference(test)
        if finding != NOT_DISTINGUISHABLE:
            return f"{self.other} is {finding} than {self.base}: difference {difference}, p {p_text(adjusted_p)}"
        among = f" among {self.num_tests} comparisons" if self.num_tests > 1 and test.is_clear_of_zero else ""
        subject = f"{self.base} and {self.other} are not distinguishable{among}"
        return f"{subject}: difference {difference}; {self._detectable(detectable)}"

    def _difference(self, test: DifferenceTest) -> str:
        delta, unit = test.delta, " points" if self.is_share else ""
        value = f"{signed(delta.value, self.is_share)}{unit}"
        if delta.low is None or delta.high is None:
            return f"{value}, without an interval"
        return f"{value} [{signed(delta.low, self.is_share)}, {signed(delta.high, self.is_share)}]"

    def _detectable(self, detectable: float | None) -> str:
        if detectable is None:
            return "smallest detectable difference: unknown"
        return f"smallest detectable difference: {amount(detectable, self.is_share)} ({100 * POWER:.0f} % power)"


def signed(value: float, is_share: bool) -> str:
    """Format a difference with its sign: `+1.5` (percentage points) for a share, `+0.015` for a score."""
    text = f"{100 * value:+.1f}" if is_share else f"{value:+.3f}"
    return text.replace("-", "+") if float(text) == 0 else text


def amount(value: float, is_share: bool) -> str:
    """Format a positive difference with its unit: `1.5 points` for a share, `0.015` for a score."""
    return f"{100 * value:.1f} points" if is_share else f"{value:.3f}"


def p_text(p_value: float) -> str:
    return "< 0.001" if p_value < 0.001 else f"= {p_value:.2g}"


@dataclass(frozen=True)
class RunRow:
    """The mean of one run, and the means of its repeated evaluations with their standard deviation, if known."""

    run: str
    seed: int | None
    mean: float
    num_evaluations: int
    evaluations: Sequence[float]
    evaluation_sd: float | None


@dataclass(frozen=True)
class ConditionRow:
    """The mean of one metric over the runs of a condition. Shares are between 0 and 1 and are shown in percent."""

    label: str
    metric: str
    is_share: bool
    mean: float
    runs: Sequence[RunRow]


@dataclass(frozen=True)
class Contrast:
    """The difference between two conditions. `delta` is other minus base; `low` and `high` are its 95 % interval.

    The interval is not corrected for multiple tests. `adjusted_p` has Holm's correction for all contrasts of the
    comparison and decides the finding. `detectable` is the smallest detectable difference at the corrected level; None
    if it is unknown or would exceed 1 for a share. Shares are between 0 and 1.
    """

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
    """The result of a whole comparison. `unfair` lists the differences besides the factor that the user has allowed."""

    title: str
    conditions: Sequence[ConditionRow]
    contrasts: Sequence[Contrast]
    unfair: Sequence[Inequality] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Pair:
    """The labels of two conditions, and the metric in which they are compared."""

    metric: str
    base: str
    other: str
    is_share: bool = True


def contrasts_of(pairs: Sequence[Pair], tests: Sequence[DifferenceTest]) -> list[Contrast]:
    """Return the contrast of each pair of conditions from its test. All p-values are corrected together."""
    adjusted = holm([test.p_value for test in tests])
    return [_contrast(*found, len(pairs)) for found in zip(pairs, tests, adjusted, strict=True)]


def _contrast(pair: Pair, test: DifferenceTest, adjusted_p: float, num_tests: int) -> Contrast:
    delta, detectable = test.delta, test.design.detectable(ALPHA / num_tests)
    if pair.is_share and detectable is not None and detectable > 1:
        detectable = None  # shares cannot differ by more than 1
    text = VerdictText(pair.base, pair.other, num_tests, pair.is_share)
    return Contrast(
        metric=pair.metric,
        is_share=pair.is_share,
        base=pair.base,
        other=pair.other,
        base_mean=test.base,
        other_mean=test.base + delta.value,
        delta=delta.value,
        low=delta.low,
        high=delta.high,
        p_value=test.p_value,
        adjusted_p=adjusted_p,
        detectable=detectable,
        method=test.method,
        num_problems=delta.num_problems,
        finding=finding_of(test, adjusted_p),
        verdict=text.verdict(test, adjusted_p, detectable),
    )
