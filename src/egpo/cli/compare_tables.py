"""What `egpo compare` prints."""

from collections.abc import Iterable, Sequence

from rich.console import Console

from egpo.cli.tables import cell, safe_table
from egpo.comparisons.outputs import CONTRAST_COLUMNS, contrast_cells
from egpo.comparisons.result import Comparison, ConditionRow, amount

CONDITION_COLUMNS = ("condition", "metric", "mean", "runs", "evaluations of each")


def print_comparison(comparison: Comparison) -> None:
    """What was not fair comes first; the verdicts in words come last, where the eye is."""
    console = Console(highlight=False, emoji=False)
    console.print(cell(comparison.title))
    if comparison.unfair:
        console.print("[bold red]Not a fair comparison:[/]")
        for found in comparison.unfair:
            console.print(f"  {cell(str(found))}")
    _print_table(console, CONDITION_COLUMNS, map(_condition_cells, comparison.conditions))
    _print_table(console, CONTRAST_COLUMNS, map(contrast_cells, comparison.contrasts))
    for contrast in comparison.contrasts:
        console.print(f"[bold]{cell(contrast.verdict)}[/] ({cell(contrast.metric)}; {cell(contrast.method)})")
    for note in comparison.notes:
        console.print(cell(note))


def _condition_cells(row: ConditionRow) -> Sequence[str]:
    """Short: names and single evaluations are in the files that --json, --markdown and --csv write."""
    runs = ", ".join(_figure(run.mean, row.is_share) for run in row.runs) if len(row.runs) > 1 else "1"
    counts = sorted({run.num_evaluations for run in row.runs})
    again = " or ".join(map(str, counts))
    spreads = [run.evaluation_sd for run in row.runs if run.evaluation_sd is not None]
    if spreads:
        again += f" (sd {amount(max(spreads), row.is_share)} at most)"
    return row.label, row.metric, _figure(row.mean, row.is_share), runs, again


def _figure(value: float, is_share: bool) -> str:
    return f"{100 * value:.1f} %" if is_share else f"{value:.3f}"


def _print_table(console: Console, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    console.print(safe_table("", columns, rows, num_text=2))
