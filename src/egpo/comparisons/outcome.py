"""What a test of two conditions comes to, whichever test it was, and what its design can see."""

from dataclasses import dataclass
from typing import Protocol

from egpo.comparisons.students_t import power_of_t, rising_root, t_quantile
from egpo.evals.bootstrap import LEVEL, Estimate

ALPHA = 1 - LEVEL
POWER = 0.8
"""What a design `could see` is seen with this probability."""
_NOTHING = 1e-12


class Design(Protocol):
    """So many problems, runs or evaluations, and how much they scatter."""

    def detectable(self, alpha: float) -> float | None:
        """The least true difference that a test at this level sees with 80 % power: the minimum detectable effect.
        None where nothing can be said."""
        ...


@dataclass(frozen=True)
class Outcome:
    """`base` is the mean of the base, `delta` what the other has more, with its 95 % interval. `p_value` is that of no
    difference."""

    base: float
    delta: Estimate
    p_value: float
    method: str
    design: Design

    @property
    def is_clear_of_zero(self) -> bool:
        low, high = self.delta.low, self.delta.high
        return low is not None and high is not None and (low > 0 or high < 0)


@dataclass(frozen=True)
class TDesign:
    """A t-test: the standard error of its estimate, and how well that is known."""

    error: float
    freedom: float

    def detectable(self, alpha: float) -> float | None:
        """None where nothing scattered."""
        if self.error < _NOTHING:
            return None
        most = 2 * self.error * (t_quantile(1 - alpha / 2, self.freedom) + t_quantile(POWER, self.freedom))
        return rising_root(lambda effect: self.power(effect, alpha) - POWER, 0.0, most, tolerance=1e-6)

    def power(self, effect: float, alpha: float) -> float:
        return power_of_t(effect, self.error, self.freedom, alpha)
