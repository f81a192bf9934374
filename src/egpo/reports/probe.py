"""`evals/probe.json`: how often the untrained model solved each prompt, as a histogram."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isclose
from typing import Any

from egpo.reports.evaluations import read_object
from egpo.reports.run import ReportedRun

PROBE = "probe.json"
_BINS = 10


@dataclass(frozen=True)
class Bar:
    """`height` is in percent of the highest bar."""

    label: str
    count: int
    height: float


@dataclass(frozen=True)
class Probe:
    run: ReportedRun
    title: str
    note: str
    bars: Sequence[Bar]

    @property
    def described(self) -> str:
        return "Prompts by pass rate: " + ", ".join(f"{bar.label} {bar.count}" for bar in self.bars)


def read_probes(runs: Sequence[ReportedRun]) -> list[Probe]:
    """Of the runs that have one. `pass_rates` is the share solved of each prompt's samples."""
    found = []
    for run in runs:
        path = run.folder.evals / PROBE
        value = read_object(path) if path.is_file() else {}
        if rates := _rates(value.get("pass_rates")):
            found.append(_probe(run, value.get("label"), rates))
    return found


def histogram(rates: Sequence[float]) -> list[Bar]:
    """Never solved, always solved, and tenths between: the first two teach nothing, so they stand apart."""
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


def _probe(run: ReportedRun, label: Any, rates: Sequence[float]) -> Probe:
    """Titled by the model that was asked: it is the base's, whatever the run made of it."""
    varied = sum(0 < rate < 1 for rate in rates) / len(rates)
    title = f"{label}, before {run.name}" if isinstance(label, str) and label else run.name
    note = f"{len(rates)} prompts by the share of right samples; {varied:.0%} solved sometimes, and not always"
    return Probe(run, title, note, histogram(rates))


def _rates(value: Any) -> list[float]:
    """A list, or an object by problem."""
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return [float(rate) for rate in values if isinstance(rate, int | float)]
