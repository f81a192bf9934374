"""`egpo results`: print and write a table of all runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from egpo.comparisons.results_table import ResultRow

SHOWN = ("name", "method", "evaluation", "mean", "status")
"""The columns that are printed to the terminal, where all of them would not fit."""
RUNS_HELP = "Folder that holds the runs."
OUT_HELP = "Folder for results.csv and results.html. Default: the folder of the runs."


def results(
    runs: Annotated[Path, typer.Argument(metavar="RUNS_DIR", help=RUNS_HELP)] = Path("runs"),
    out: Annotated[Path | None, typer.Option(metavar="DIR", help=OUT_HELP, show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False,
) -> None:
    """List every run with its method, evaluations and status: as a table, a CSV file and an HTML page.

    The table is read from the run folders each time. Runs without evaluations and folders that cannot be read are also
    listed: see the column `status`.

    Example: [cyan]egpo results runs[/]
    """
    from egpo.cli.silence import now_doing
    from egpo.comparisons.results_table import read_results

    now_doing(f"reading the runs in {runs}")
    entries = read_results(runs)
    _write(entries, runs, out or runs)
    if as_json:
        _print_json(entries)
    else:
        _print_table(entries)


def _write(entries: "Sequence[ResultRow]", runs: Path, out: Path) -> None:
    from egpo.comparisons.outputs import csv_text, write_text
    from egpo.comparisons.results_table import COLUMNS
    from egpo.reports.page import render_table_page

    rows = [entry.cells for entry in entries]
    write_text(out / "results.csv", csv_text(COLUMNS, rows))
    write_text(out / "results.html", render_table_page(f"Results of {runs.resolve().name}", COLUMNS, rows))
    typer.echo(f"written to {out / 'results.csv'} and {out / 'results.html'}", err=True)


def _print_json(entries: "Sequence[ResultRow]") -> None:
    import json
    from dataclasses import asdict

    typer.echo(json.dumps([asdict(entry) for entry in entries], indent=2, ensure_ascii=False))


def _print_table(entries: "Sequence[ResultRow]") -> None:
    from rich.console import Console

    from egpo.cli.tables import safe_table

    rows = [[getattr(entry, name) for name in SHOWN] for entry in entries]
    Console(highlight=False).print(safe_table("", SHOWN, rows, num_text=len(SHOWN)))
