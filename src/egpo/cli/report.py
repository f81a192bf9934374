"""`egpo report`: write an HTML page about one or several runs."""

from pathlib import Path
from typing import Annotated

import typer

Runs = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN...",
        help="Run folders, and compare.json files that are not in the folder that holds the runs.",
        show_default=False,
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FILE",
        help="File to write. Default: report.html in the run folder, or in the common folder of several runs.",
        show_default=False,
    ),
]


def report(runs: Runs, out: Out = None) -> None:
    """Write an HTML page about runs: curves, evaluations, health warnings, settings that differ, and responses.

    The page is a single file that loads nothing from the network. A run that is still training is shown up to its
    latest step. A compare.json that `egpo compare --out` wrote to the folder that holds the runs is included.

    Example: [cyan]egpo report runs/grpo runs/egpo --out comparison.html[/]
    """
    from egpo.reports import write_report

    typer.echo(write_report(runs, out))
