"""`egpo audit sandbox`: does the sandbox hold?

`egpo audit`: do the rewards judge rightly, does the sandbox hold?
"""

import json
from dataclasses import asdict
from pathlib import Path
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
    from egpo.rewards.sandbox.choose import describe
    from egpo.rewards.sandbox.tiers import Bubblewrap

    sandbox = require_sandbox(tier)
    if not cgroup:
        if not isinstance(sandbox, Bubblewrap):
            raise InputError("--no-cgroup is for bubblewrap", where="egpo audit sandbox", fix="add --tier bubblewrap")
        sandbox = replace(sandbox, divide_memory=True)
    return sandbox, describe(sandbox)


HELP = """Check the rewards and the sandbox themselves.

Example: [cyan]egpo audit rewards runs/tiny/rollouts/step_10.jsonl --against stored[/]
"""

audit_app = typer.Typer(no_args_is_help=True, help=HELP, rich_markup_mode="rich")
audit_app.command("sandbox")(audit_sandbox)

FILE_HELP = "Rollouts: our JSON lines, verl's, or parquet with a column `response`."
REWARD_HELP = "A data source or kind (gsm8k, function_calling@plain), or module:function. Default: each row's own."
AGAINST_HELP = "Another reward, named likewise, or `stored`: show the rows on which the two differ."


@audit_app.command("rewards")
def rewards(
    file: Annotated[Path, typer.Argument(help=FILE_HELP)],
    reward: Annotated[str | None, typer.Option(help=REWARD_HELP)] = None,
    against: Annotated[str | None, typer.Option(help=AGAINST_HELP)] = None,
    workers: Annotated[int | None, typer.Option(help="Processes; 0: none. Default: one a core.")] = None,
    rows: Annotated[int, typer.Option(min=0, help="Show at most so many of the rows that differ.")] = 20,
    limit: Annotated[int | None, typer.Option(min=1, help="Replay the first so many rows only.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")] = False,
) -> None:
    """Replay stored rollouts through a reward: accuracy, mean reward, reasons, failures of the checker.

    Accuracy and mean reward are over the responses that could be judged. Rollouts in a run folder are judged in the
    mode that the run's config.yaml says, unless the reward is named with another (NAME@MODE).

    Example: egpo audit rewards rollouts.jsonl --reward gsm8k --against stored
    """
    import json

    from egpo.audits import audit_rewards
    from egpo.cli.audit_tables import as_json_value, print_audit
    from egpo.cli.progress import counted

    watch = counted("rows")
    done = audit_rewards(file, reward=reward, against=against, workers=workers, limit=limit, keep=rows, watch=watch)
    if as_json:
        typer.echo(json.dumps(as_json_value(done, reward, against), indent=2))
    else:
        print_audit(done, reward, against)
