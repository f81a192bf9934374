"""`egpo demo`: the whole idea in minutes."""

from pathlib import Path
from typing import Annotated

import typer

OUT_HELP = "Folder for data, runs and report. Default: runs/demo, with --fast runs/demo-fast."


def demo(
    fast: Annotated[bool, typer.Option("--fast", help="A taste of about a minute: too short to prove much.")] = False,
    out: Annotated[Path | None, typer.Option(help=OUT_HELP, show_default=False)] = None,
) -> None:
    """Train the tiny model that comes along on Countdown with GRPO and two EGPO estimators, and compare them.

    Data, probe, three runs, evaluation, report: about four minutes on two cores. Interrupted, it continues when called
    again.

    Example: [cyan]egpo demo --fast[/]
    """
    from rich.console import Console

    from egpo.cli.demo_tables import print_closing
    from egpo.cli.eval_progress import shown_progress
    from egpo.demos.demo import run_demo
    from egpo.demos.plan import FAST, FULL, DemoFolder
    from egpo.experiments.screen import Screen

    console = Console(highlight=False)
    folder = DemoFolder(out or Path("runs", "demo-fast" if fast else "demo"))
    screen = Screen(say=lambda line: console.print(line, markup=False, soft_wrap=True), watched=shown_progress)
    print_closing(run_demo(folder, FAST if fast else FULL, screen), console)
