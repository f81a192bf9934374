"""`egpo demo`: train the packaged model with every estimator, and print how they compare."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from egpo.demos.demo import Demo
    from egpo.demos.findings import Gain, ModelDifference
    from egpo.evals.intervals import Estimate

FAST_HELP = "Train for 6 steps instead of 40. This takes about a minute, but is too short to show clear differences."
OUT_HELP = "Folder for data, runs and report. Default: runs/demo, or runs/demo-fast with --fast."

_TITLES = {"sampled": "Sampled as in training (pass@1)", "greedy": "Greedy"}
_ONE_SEED = (
    "Each estimator was trained with one seed. The intervals cover the choice of problems, but not the differences "
    "between seeds."
)


def demo(
    fast: Annotated[bool, typer.Option("--fast", help=FAST_HELP)] = False,
    out: Annotated[Path | None, typer.Option(help=OUT_HELP, show_default=False)] = None,
) -> None:
    """Train the tiny model of this package on the Countdown task with GRPO and two variants of EGPO, and compare them.

    The demo prepares data, probes the model, trains three runs, evaluates them and writes a report, in
    about four minutes on two cores. An interrupted demo continues when the same command is given again.

    Example: [cyan]egpo demo --fast[/]
    """
    from rich.console import Console

    from egpo.cli.progress import terminal_screen
    from egpo.demos.demo import FAST, FULL, DemoFolder, run_demo

    folder = DemoFolder(out or Path("runs", "demo-fast" if fast else "demo"))
    print_closing(run_demo(folder, FAST if fast else FULL, terminal_screen()), Console(highlight=False))


def print_closing(demo: "Demo", console: "Console") -> None:
    """Print the results of the demo, and the path of its report.

    The results are the comparison of each estimator with the base model, the comparison of all pairs of estimators,
    and for each estimator whether sampled accuracy, greedy accuracy and response length have increased.
    """
    from egpo.cli.tables import cell
    from egpo.demos.findings import against_base, between_estimators, gains
    from egpo.runs.formatting import format_duration

    apart, pairs = list(against_base(demo.evaluations)), list(between_estimators(demo.evaluations))
    for manner, title in _TITLES.items():
        rows = [_against_base(one) for one in apart if one.manner == manner]
        _print_table(console, f"{title}: accuracy on held-out problems, in percent", "base -> trained", rows)
        _print_table(console, "", "difference", [_pair(one) for one in pairs if one.manner == manner])
    console.print()
    for line in (*map(_gain_line, gains(demo.evaluations)), demo.forecast, _ONE_SEED):
        console.print(cell(line))
    console.print(f"This took {format_duration(demo.took_s)}. Open the report in a browser:")
    console.print(cell(str(demo.report)), style="bold", soft_wrap=True)


def _print_table(console: "Console", title: str, change: str, rows: Iterable[Sequence[str]]) -> None:
    from rich import box

    from egpo.cli.tables import cell, safe_table

    # A table's own title would be wrapped to the table's width.
    console.print(f"\n{cell(title)}" if title else "", style="bold")
    table = safe_table("", ("model", change, "95 % interval", "verdict"), rows)
    table.box, table.show_edge = box.SIMPLE_HEAD, False
    console.print(table)


def _against_base(found: "ModelDifference") -> Sequence[str]:
    row = found.difference
    change = f"{100 * row.base:.1f} -> {100 * row.other:.1f} ({_points(row.delta.value)})"
    return found.other, change, _interval(row.delta), row.verdict


def _pair(found: "ModelDifference") -> Sequence[str]:
    row = found.difference
    return f"{found.other} - {found.base}", _points(row.delta.value), _interval(row.delta), row.verdict


def _points(share: float) -> str:
    return f"{100 * share:+.1f}"


def _interval(delta: "Estimate") -> str:
    return "" if delta.low is None or delta.high is None else f"{_points(delta.low)} to {_points(delta.high)}"


def _gain_line(gain: "Gain") -> str:
    length = f"mean length {gain.length.base:.0f} -> {gain.length.other:.0f} tokens"
    return f"{gain.estimator}: {gain.described} ({length})."
