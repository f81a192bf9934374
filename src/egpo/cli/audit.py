"""`egpo audit`: check the rewards on stored rollouts, and try to escape from the sandbox."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from egpo.rewards.sandbox import Sandbox


def audit_sandbox(
    tier: Annotated[
        str | None,
        typer.Option(
            help="Sandbox to test: bubblewrap, limits, or the URL of a service. Default: the best on this machine."
        ),
    ] = None,
    memory: Annotated[
        bool,
        typer.Option(
            help="Measure memory only: run several copies of each program that allocates too much, and compare the "
            "drop of the host's available memory with their limit. Nothing else may run on the machine."
        ),
    ] = False,
    programs: Annotated[int, typer.Option(min=1, help="With --memory: number of concurrent copies.")] = 4,
    cgroup: Annotated[
        bool,
        typer.Option(help="--no-cgroup: limit memory without a cgroup, as on a machine where none can be created."),
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Run programs that try to escape from the sandbox, exhaust the machine or forge a pass, and list the outcome.

    Exit code 1 if an attempt was not contained.

    Example: [cyan]egpo audit sandbox --tier bubblewrap[/]
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
    """Return the sandbox to test, and a description of its protection."""
    from dataclasses import replace

    from egpo.errors import InputError
    from egpo.rewards.sandbox import require_sandbox
    from egpo.rewards.sandbox.selection import describe
    from egpo.rewards.sandbox.tiers import Bubblewrap

    sandbox = require_sandbox(tier)
    if not cgroup:
        if not isinstance(sandbox, Bubblewrap):
            raise InputError("--no-cgroup needs bubblewrap", where="egpo audit sandbox", fix="add --tier bubblewrap")
        sandbox = replace(sandbox, divide_memory=True)
    return sandbox, describe(sandbox)


HELP = """Check rewards on stored rollouts, and the sandbox in which programs run.

Example: [cyan]egpo audit rewards runs/tiny/rollouts/step_10.jsonl --against stored[/]
"""

audit_app = typer.Typer(no_args_is_help=True, help=HELP, rich_markup_mode="rich")
audit_app.command("sandbox")(audit_sandbox)

FILE_HELP = "File of rollouts: JSON lines of egpo or verl, or parquet with a column `response`."
REWARD_HELP = (
    "Reward: a data source or kind (gsm8k, function_calling@plain), or module:function. Default: each row's own."
)
AGAINST_HELP = "Second reward, or `stored` for the stored scores: show the rows on which the two differ. Default: none."


@audit_app.command("rewards")
def rewards(
    file: Annotated[Path, typer.Argument(help=FILE_HELP)],
    reward: Annotated[str | None, typer.Option(help=REWARD_HELP)] = None,
    against: Annotated[str | None, typer.Option(help=AGAINST_HELP)] = None,
    workers: Annotated[
        int | None, typer.Option(help="Worker processes. 0: work in this process. Default: one per core.")
    ] = None,
    rows: Annotated[int, typer.Option(min=0, help="With --against: show at most N rows that differ.")] = 20,
    limit: Annotated[int | None, typer.Option(min=1, help="Read only the first N rows. Default: all.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Judge stored rollouts again: accuracy, mean reward, reasons, failures of the checker.

    Accuracy and mean reward are over the responses that could be judged. Rollouts in a run folder are judged in the
    mode of the run's config.yaml, unless the reward is named with another mode (NAME@MODE).

    Example: [cyan]egpo audit rewards rollouts.jsonl --reward gsm8k --against stored[/]
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
