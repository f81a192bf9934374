"""What `egpo compare` prints."""

from collections.abc import Iterable, Sequence

from rich.console import Console

from egpo.cli.safe_tables import cell, safe_table
from egpo.comparisons.outputs import CONDITION_COLUMNS, CONTRAST_COLUMNS, condition_cells, contrast_cells
from egpo.comparisons.result import Comparison


def print_comparison(comparison: Comparison) -> None:
    """What was not fair comes first; the verdicts in words come last, where the eye is."""
    console = Console(highlight=False)
    console.print(cell(comparison.title))
    if comparison.unfair:
        console.print("[bold red]Not a fair comparison:[/]")
        for found in comparison.unfair:
            console.print(f"  {cell(str(found))}")
    _print_table(console, CONDITION_COLUMNS, map(condition_cells, comparison.conditions))
    _print_table(console, CONTRAST_COLUMNS, map(contrast_cells, comparison.contrasts))
    for contrast in comparison.contrasts:
        console.print(f"[bold]{cell(contrast.verdict)}[/] ({cell(contrast.metric)}; {cell(contrast.method)})")
    for note in comparison.notes:
        console.print(cell(note))


def _print_table(console: Console, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    console.print(safe_table("", columns, rows, num_text=2))
