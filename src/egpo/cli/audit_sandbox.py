"""`egpo audit sandbox`: does the sandbox hold?"""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from egpo.rewards.sandbox import Sandbox


def audit_sandbox(
    tier: Annotated[str | None, typer.Option(help="bubblewrap, limits, or a service's URL.")] = None,
    memory: Annotated[
        bool,
        typer.Option(
            help="Only measure memory: run several copies at once of each program that tries to hold too much, and "
            "compare the fall of the host's available memory with what they may hold. Nothing else may be running."
        ),
    ] = False,
    programs: Annotated[int, typer.Option(min=1, help="With --memory: copies at once.")] = 4,
    cgroup: Annotated[
        bool, typer.Option(help="With --no-cgroup, bound memory as on a machine where no cgroup can be made.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Try to escape from the sandbox, use up the machine, and forge a pass; tell which attempts were contained.

    Exit code 1 where one got through.

    Example: egpo audit sandbox --tier bubblewrap
    """
    from rich.console import Console
    from rich.table import Table

    from egpo.rewards.sandbox.audit import audit, measure_memory

    sandbox, detail = _sandbox(tier, cgroup)
    with Console(stderr=True).status("trying to escape") as status:
        rows = []
        for finding in measure_memory(sandbox, programs) if memory else audit(sandbox):
            rows.append(asdict(finding))
            status.update(f"trying to escape: {finding.attempt}")
    num_through = sum(not row["contained"] for row in rows)
    if as_json:
        answer = {"tier": sandbox.tier, "protection": detail, "got_through": num_through, "attempts": rows}
        typer.echo(json.dumps(answer, indent=2))
    else:
        measured = ("host MB", "one sandbox MB", "may hold MB") if memory else ()
        table = Table("attempt", "what happened", *measured, "contained", title=detail)
        for row in rows:
            numbers = [f"{row[key]:.0f}" for key in ("host_mb", "sandbox_mb", "bound_mb")] if memory else []
            contained = "yes" if row["contained"] else "[bold red]NO"
            table.add_row(row["attempt"], row["happened"], *numbers, contained)
        console = Console()
        console.print(table)
        console.print(f"{len(rows)} attempts, {num_through} got through")
    if num_through:
        raise typer.Exit(1)


def _sandbox(tier: str | None, cgroup: bool) -> "tuple[Sandbox, str]":
    """The sandbox to try, and what protects the host from it."""
    from dataclasses import replace

    from egpo.errors import InputError
    from egpo.rewards.sandbox import require_sandbox
    from egpo.rewards.sandbox.bubblewrap import Bubblewrap
    from egpo.rewards.sandbox.choose import describe

    sandbox = require_sandbox(tier)
    if not cgroup:
        if not isinstance(sandbox, Bubblewrap):
            raise InputError("--no-cgroup is for bubblewrap", where="egpo audit sandbox", fix="add --tier bubblewrap")
        sandbox = replace(sandbox, divide_memory=True)
    return sandbox, describe(sandbox)
