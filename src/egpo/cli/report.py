"""`egpo report`: runs as one page to look at."""

from pathlib import Path
from typing import Annotated

import typer

Runs = Annotated[
    list[Path],
    typer.Argument(metavar="RUN...", help="Run folders, and a compare.json if it lies elsewhere.", show_default=False),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FILE",
        help="Where it goes. Default: report.html in the run, or beside the runs where there are several.",
        show_default=False,
    ),
]


def report(runs: Runs, out: Out = None) -> None:
    """Write runs as one HTML page: curves, evaluations, health, settings that differ, and responses to read.

    The page is a single file that loads nothing from anywhere. A run that is still going is shown as far as it is:
    give the command again to see more. What `egpo compare --out` wrote beside the runs is shown, too.

    Example: [cyan]egpo report runs/grpo runs/egpo --out comparison.html[/]
    """
    from egpo.reports import write_report

    typer.echo(write_report(runs, out))
