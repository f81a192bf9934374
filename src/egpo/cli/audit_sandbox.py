"""`egpo audit sandbox`: does the sandbox hold?"""

import json
from typing import Annotated

import typer


def audit_sandbox(
    tier: Annotated[str | None, typer.Option(help="bubblewrap, limits, or a service's URL.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Try to escape from the sandbox, use up the machine, and forge a pass; tell which attempts were contained.

    Exit code 1 where one got through.

    Example: egpo audit sandbox --tier bubblewrap
    """
    from rich.console import Console
    from rich.table import Table

    from egpo.rewards.sandbox import require_sandbox, sandbox_status
    from egpo.rewards.sandbox.audit import audit

    sandbox = require_sandbox(tier)
    errors = Console(stderr=True)
    with errors.status("trying to escape") as status:
        findings = []
        for finding in audit(sandbox):
            findings.append(finding)
            status.update(f"trying to escape: {finding.attempt}")
    num_through = sum(not finding.contained for finding in findings)
    if as_json:
        rows = [vars(finding) for finding in findings]
        typer.echo(json.dumps({"tier": sandbox.tier, "got_through": num_through, "attempts": rows}, indent=2))
    else:
        table = Table("attempt", "what happened", "contained", title=sandbox_status(tier).detail)
        for finding in findings:
            table.add_row(finding.attempt, finding.happened, "yes" if finding.contained else "[bold red]NO")
        console = Console()
        console.print(table)
        console.print(f"{len(findings)} attempts, {num_through} got through")
    if num_through:
        raise typer.Exit(1)
