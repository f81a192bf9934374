"""`egpo doctor`: check whether this machine can run egpo."""

import json
from dataclasses import asdict
from typing import Annotated

import typer


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print the checks as JSON.")] = False) -> None:
    """Check whether this machine can run egpo, and print how to fix what is missing.

    Checks are green (good), amber (something optional is missing) or red (egpo cannot run). The exit code is 1 if a
    check is red.

    Example: [cyan]egpo doctor[/]
    """
    from egpo.cli.silence import now_doing
    from egpo.machine_checks import run_checks

    checks = []
    for check in run_checks():
        checks.append(check)
        now_doing(f"checking this machine; the last check that is done is `{check.name}`")
    if as_json:
        typer.echo(json.dumps([asdict(check) for check in checks], indent=2))
    else:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False)
        for heading in ("", "check", "found", "what to do"):
            table.add_column(heading, overflow="fold")
        first_with: dict[str, str] = {}
        for check in checks:
            first = first_with.setdefault(check.fix, check.name)
            fix = check.fix if first == check.name or not check.fix else f"as for {first}"
            colour = {"green": "green", "amber": "yellow", "red": "red"}[check.state]
            table.add_row(Text(check.state, style=colour), check.name, Text(check.found), Text(fix))
        Console().print(table)
    if any(check.state == "red" for check in checks):
        raise typer.Exit(1)
