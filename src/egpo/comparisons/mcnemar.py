"""McNemar's test for problems that are right or wrong, once for each model, and what it can see. P problems.

Only problems that one of the two got right count: without a difference each is a toss of a coin.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from egpo.comparisons.outcome import POWER
from egpo.comparisons.students_t import rising_root

Floats = NDArray[np.float64]
_NEVER = 1e-9
_ENOUGH_COUNTS = 150
"""Of the numbers of problems that the models may differ on: between neighbours the power hardly changes."""


def mid_p(num_lost: int, num_won: int) -> float:
    """Two-sided: twice the chance of fewer on the smaller side, plus the chance of exactly so many. 1 where both are
    equal, or there are none.

    The exact p-value counts the split that was seen in full and cries wolf in 2 to 4 % of cases instead of 5; half of
    it brings the rate near to 5 without passing it by more than a trifle (Fagerland et al. 2013,
    doi:10.1186/1471-2288-13-91).
    """
    tosses, fewer = num_lost + num_won, min(num_lost, num_won)
    if num_lost == num_won:
        return 1.0
    below, ways = 0, 1  # to have fewer on the smaller side, and exactly so many: whole numbers, however large
    for count in range(fewer):
        below, ways = below + ways, ways * (tosses - count) // (count + 1)
    return (2 * below + ways) / (1 << tosses)


@dataclass(frozen=True)
class Discordance:
    """The share of problems that only one of the models got right, and the number of all problems."""

    share: float
    num_problems: int

    def detectable(self, alpha: float) -> float | None:
        """None where no problem was answered differently: how many might be, nobody knows then."""
        if self.share == 0 or self.power(1.0, alpha) < POWER:
            return None
        return rising_root(lambda effect: self.power(effect, alpha) - POWER, 0.0, 1.0, tolerance=1e-5)

    def power(self, effect: float, alpha: float) -> float:
        """The chance that the test sees a true difference `effect`, where the models differ on this share of problems,
        or on `effect` of them: over how many they are, and over how they split."""
        share = max(self.share, effect)
        won = (1 + effect / share) / 2
        counts = _binomial(self.num_problems, share)
        likely = np.nonzero(counts > _NEVER)[0]
        some = likely[:: 1 + len(likely) // _ENOUGH_COUNTS]
        alarms = sum(counts[tosses] * _chance_of_alarm(tosses, won, alpha) for tosses in some.tolist())
        return float(alarms / counts[some].sum())


def _chance_of_alarm(tosses: int, won: float, alpha: float) -> float:
    most = _most_in_alarm(tosses, alpha)
    chances = _binomial(tosses, won)
    return float(chances[: most + 1].sum() + chances[tosses - most :].sum())


@lru_cache(maxsize=20_000)
def _most_in_alarm(tosses: int, alpha: float) -> int:
    """The most on the smaller side at which the split still is an alarm; -1 where none is."""
    chances = _binomial(tosses, 0.5)
    p_values = 2 * (np.cumsum(chances) - chances) + chances
    return int(np.nonzero(p_values[: (tosses + 1) // 2] < alpha)[0].max(initial=-1))


def _binomial(n: int, p: float) -> Floats:
    """The chances of 0 to n."""
    if p in (0, 1):
        certain: Floats = np.zeros(n + 1)
        certain[round(n * p)] = 1
        return certain
    log_factorials = _log_factorials(1 << n.bit_length())[: n + 1]
    logits = np.arange(n + 1) * (math.log(p) - math.log1p(-p))
    chances: Floats = np.exp(log_factorials[n] + n * math.log1p(-p) + logits - log_factorials - log_factorials[::-1])
    return chances


@lru_cache
def _log_factorials(end: int) -> Floats:
    """Of 0 up to, and without, `end`."""
    table: Floats = np.cumsum(np.log(np.maximum(np.arange(end), 1)))
    return table
