"""`evals/probe.json` as a histogram: how often the untrained model solved each prompt."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isclose
from typing import Any

from egpo.reports.curves import ReportedRun

_BINS = 10


@dataclass(frozen=True)
class Bar:
    """One bar: the number of prompts in it, and its height in percent of the highest bar."""

    label: str
    count: int
    height: float


@dataclass(frozen=True)
class ProbeHistogram:
    """The pass rates of one probe as bars. `note` is the line below the title."""

    run: ReportedRun
    title: str
    note: str
    bars: Sequence[Bar]

    @property
    def described(self) -> str:
        """The bars as text, for screen readers."""
        return "Prompts by pass rate: " + ", ".join(f"{bar.label} {bar.count}" for bar in self.bars)


def read_probes(runs: Sequence[ReportedRun]) -> list[ProbeHistogram]:
    """Return a histogram for each run that was probed."""
    found = []
    for run in runs:
        probe = run.stored.probe or {}
        if rates := _rates(probe.get("pass_rates")):
            found.append(_histogram_of(run, probe.get("label"), rates))
    return found


def histogram(rates: Sequence[float]) -> list[Bar]:
    """Return twelve bars: never solved, ten bins between, always solved.

    Prompts in the first and the last bar give no gradient.
    """
    never = sum(rate <= 0 for rate in rates)
    always = sum(rate >= 1 or isclose(rate, 1) for rate in rates)
    counts = [0] * _BINS
    for rate in rates:
        if 0 < rate < 1 and not isclose(rate, 1):
            counts[int(rate * _BINS)] += 1
    labels = ["0", *(f"<.{place}" for place in range(1, _BINS)), "<1", "1"]
    highest = max(1, never, always, *counts)
    shown = zip(labels, [never, *counts, always], strict=True)
    return [Bar(label, count, round(100 * count / highest, 1)) for label, count in shown]


def _histogram_of(run: ReportedRun, label: Any, rates: Sequence[float]) -> ProbeHistogram:
    """Build the histogram of a run. Its title names the model that was probed: the base, before training."""
    varied = sum(0 < rate < 1 for rate in rates) / len(rates)
    title = f"{label}, before {run.name}" if isinstance(label, str) and label else run.name
    note = f"{len(rates)} prompts by their share of correct responses; {varied:.0%} are solved sometimes, not always"
    return ProbeHistogram(run, title, note, histogram(rates))


def _rates(value: Any) -> list[float]:
    """Read pass rates from a list, or from an object by problem."""
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return [float(rate) for rate in values if isinstance(rate, int | float)]
