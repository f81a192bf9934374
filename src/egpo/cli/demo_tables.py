"""What `egpo demo` closes with, at 80 columns."""

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console

from egpo.cli.tables import cell, safe_table
from egpo.demos.demo import Demo
from egpo.demos.findings import Finding, Gain, against_base, between_estimators, gains
from egpo.evals.intervals import Estimate
from egpo.runs.formatting import format_duration

_TITLES = {"sampled": "Sampled as in training (pass@1)", "greedy": "Greedy"}
_ONE_SEED = (
    "One seed each: the intervals are about these models on problems like these. What another seed would give, they "
    "do not say."
)


def print_closing(demo: Demo, console: Console) -> None:
    """Each estimator against the base, all pairs of estimators, what kind of gain it was, and where to look."""
    apart, pairs = list(against_base(demo.evaluations)), list(between_estimators(demo.evaluations))
    for manner, title in _TITLES.items():
        rows = [_against_base(one) for one in apart if one.manner == manner]
        _print_table(console, f"{title}: accuracy on held-out problems, in percent", "base -> trained", rows)
        _print_table(console, "", "difference", [_pair(one) for one in pairs if one.manner == manner])
    console.print()
    for line in (*map(_gain_line, gains(demo.evaluations)), demo.forecast, _ONE_SEED):
        console.print(cell(line))
    console.print(f"This took {format_duration(demo.took_s)}. To be opened in a browser:")
    console.print(cell(str(demo.report)), style="bold", soft_wrap=True)


def _print_table(console: Console, title: str, change: str, rows: Iterable[Sequence[str]]) -> None:
    # A table's own title would be wrapped to the table's width.
    console.print(f"\n{cell(title)}" if title else "", style="bold")
    table = safe_table("", ("model", change, "95 % interval", "verdict"), rows)
    table.box, table.show_edge = box.SIMPLE_HEAD, False
    console.print(table)


def _against_base(finding: Finding) -> Sequence[str]:
    row = finding.difference
    change = f"{100 * row.base:.1f} -> {100 * row.other:.1f} ({_points(row.delta.value)})"
    return finding.other, change, _interval(row.delta), row.verdict


def _pair(finding: Finding) -> Sequence[str]:
    row = finding.difference
    return f"{finding.other} - {finding.base}", _points(row.delta.value), _interval(row.delta), row.verdict


def _points(share: float) -> str:
    return f"{100 * share:+.1f}"


def _interval(delta: Estimate) -> str:
    return "" if delta.low is None or delta.high is None else f"{_points(delta.low)} to {_points(delta.high)}"


def _gain_line(gain: Gain) -> str:
    return f"{gain.estimator}: {gain.described} ({gain.length.base:.0f} -> {gain.length.other:.0f} tokens)."
