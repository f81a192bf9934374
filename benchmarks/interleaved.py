"""The timing of several contenders in turn, round after round, so that other load on the machine slows all equally.

A ratio is computed within a round. Its median and quartiles over the rounds are printed.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """The seconds of one contender in each round."""

    seconds: list[float]

    @property
    def median_s(self) -> float:
        return statistics.median(self.seconds)

    def over(self, other: "Timing") -> "Ratio":
        return Ratio([a / b for a, b in zip(self.seconds, other.seconds, strict=True)])


@dataclass(frozen=True)
class Ratio:
    values: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def __str__(self) -> str:
        if len(self.values) < 4:
            return f"{self.median:.2f} ({min(self.values):.2f} to {max(self.values):.2f})"
        low, _, high = statistics.quantiles(self.values, n=4)
        return f"{self.median:.2f} ({low:.2f} to {high:.2f})"


def time_interleaved(
    contenders: dict[str, Callable[[], object]],
    rounds: int,
    settle: Callable[[], None] = lambda: None,
    before: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Run every contender once to warm up, then `rounds` times in turn. `settle` waits for a device and counts as
    part of the contender's time; `before` cleans up before each contender and is not timed. Other load on the machine
    does not disturb `clock=time.process_time`, the processor time of this process."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds + 1):
        for name, contender in contenders.items():
            before()
            settle()
            start = clock()
            contender()
            settle()
            if turn:
                seconds[name].append(clock() - start)
    return {name: Timing(values) for name, values in seconds.items()}
