"""What was found, in words."""

from dataclasses import dataclass
from typing import Literal

from egpo.comparisons.outcome import ALPHA, Outcome

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
