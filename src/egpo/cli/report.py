"""`egpo report`: write an HTML page about runs, or serve a page that follows them."""

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
Budget = Annotated[
    float,
    typer.Option(
        "--budget",
        metavar="MB",
        min=0.2,
        max=500,
        help="Largest size of the page in megabytes. It includes as many responses as fit, and says what is left out.",
    ),
]
Live = Annotated[
    bool,
    typer.Option("--live", help="Serve a page that follows the runs instead of writing a file. Ctrl-C ends it."),
]
Host = Annotated[str, typer.Option(help="With --live: address to listen on. 0.0.0.0: all interfaces.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="With --live: port to listen on. 0: any free port.")]


def report(
    runs: Runs,
    out: Out = None,
    budget: Budget = 5.0,
    live: Live = False,
    host: Host = "127.0.0.1",
    port: Port = 8765,
) -> None:
    """Write an HTML page about runs: verdict, curves, evaluations, health warnings, settings that differ, responses.

    The page is a single file that loads nothing from the network. A run that is still training is shown up to its
    latest step; with --live the page updates itself. A compare.json that `egpo compare --out` wrote to the folder that
    holds the runs is included.

    Example: [cyan]egpo report runs/grpo runs/egpo --out comparison.html[/]
    """
    if live:
        from egpo.cli.silence import ready
        from egpo.errors import InputError
        from egpo.reports.live import serve_live

        if out is not None:
            raise InputError("--live writes no file", where="--out", fix="leave out --live or --out")

        def say(address: str) -> None:
            typer.echo(address)
            ready()

        serve_live(runs, say, host=host, port=port, budget_mb=budget)
        return
    from egpo.cli.silence import now_doing
    from egpo.reports import write_report

    now_doing(f"writing a report about {len(runs)} run{'s' * (len(runs) > 1)}")
    typer.echo(write_report(runs, out, budget))
