"""The tables that `egpo probe` prints, for terminals of 80 columns."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from egpo.cli.eval_tables import (
    figure_rows,
    notes_on,
    number,
    percent,
    print_table,
    print_unreadable,
    reason_rows,
    sampled,
)
from egpo.cli.tables import cell
from egpo.probes.findings import ProbeFinding
from egpo.probes.keep import Kept
from egpo.probes.probe import Probe
from egpo.reports.pass_rates import histogram

_BAR_WIDTH = 50
_SHADES = {"good": "green", "remark": "yellow", "bad": "red"}
_LABELS = {"good": "good", "remark": "check", "bad": "problem"}


def print_probe(probe: Probe, path: Path) -> None:
    """Print the figures, pass rates, forecast and findings of a probe.

    If no response contains an answer, print examples of responses instead of figures, pass rates and forecast.
    """
    console, evaluation = Console(highlight=False, emoji=False), probe.evaluation
    figures = evaluation.figures
    title = f"{evaluation.label}: {evaluation.exam.task}, {figures.num_problems:,} training problems"
    title += f", {sampled(evaluation)}"
    if figures.readable_frac == 0:
        print_unreadable(console, evaluation, title)
    else:
        rows = [*figure_rows(figures), ("reward variance within a problem", *number(probe.reward_variance, 3))]
        print_table(console, title, ("figure", "value", "95 % interval"), rows, 1)
    print_table(console, "reasons", ("reason", "meaning", "responses", "share"), reason_rows(evaluation), 2)
    for note in notes_on(evaluation):
        console.print(escape(note))
    if figures.readable_frac != 0:
        _print_rates(console, probe)
        _print_forecast(console, probe)
    _print_findings(console, probe)
    console.print(f"written to {escape(str(path))}; a plot is in the same folder", soft_wrap=True)


def print_kept(kept: Kept) -> None:
    console = Console(highlight=False, emoji=False)
    console.print(f"kept {kept.num_kept:,} of {kept.num_probed:,} problems in {escape(kept.kept)}", soft_wrap=True)
    console.print(f"control: the same number of problems, drawn at random, in {escape(kept.control)}", soft_wrap=True)


def _print_rates(console: Console, probe: Probe) -> None:
    console.print("problems by pass rate")
    for bar in histogram(list(probe.pass_rates.values())):
        filled = "█" * round(bar.height / 100 * _BAR_WIDTH) or ("▏" if bar.count else "")
        meaning = {"0": "never", "1": "always"}.get(bar.label, bar.label)
        console.print(f"  {meaning:>6} {filled}{' ' * bool(filled)}{bar.count}")
    console.print()


def _print_forecast(console: Console, probe: Probe) -> None:
    title = "forecast: fraction of groups whose rewards differ (informative), by group size"
    columns = ("", "group size", "informative", "95 % interval", "method")
    print_table(console, title, columns, _forecast_rows(probe), 1)


def _forecast_rows(probe: Probe) -> Iterator[Sequence[str]]:
    for one in probe.forecasts:
        mark = "→" if one.group_size == probe.recommendation.group_size else ""
        yield mark, str(one.group_size), *percent(one.informative), "extrapolated" if one.extrapolated else "counted"


def _print_findings(console: Console, probe: Probe) -> None:
    for finding in probe.findings:
        _print_finding(console, finding)
    advice = probe.recommendation
    wanted = "[bold]no group size[/]" if advice.group_size is None else f"[bold]rollout.n={advice.group_size}[/]"
    console.print(f"recommended: {wanted}, {escape(advice.why)}\n")


def _print_finding(console: Console, finding: ProbeFinding) -> None:
    shade, label = _SHADES[finding.status], _LABELS[finding.status]
    value = f"{finding.value:.3f}" if finding.figure in ("reward variance", "entropy") else f"{finding.value:.1%}"
    console.print(f"[{shade}]{label:>10}[/]  {cell(finding.figure)} {value} (wanted: {cell(finding.wanted)})")
    if finding.advice:
        console.print(f"{'':12}{cell(finding.advice)}")
