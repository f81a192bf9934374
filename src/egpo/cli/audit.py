"""`egpo audit`: judge stored rollouts again to check a reward, play stored episodes again, and test the sandbox with
programs that attack it."""

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
            help="Sandbox to test: bubblewrap, limits (resource limits only), or the URL of a sandbox service. "
            "Default: the best that this machine offers."
        ),
    ] = None,
    memory: Annotated[
        bool,
        typer.Option(
            help="Test only the memory limit: run several copies of each program that allocates too much, and compare "
            "how far the machine's free memory drops with the limit. Nothing else may run on the machine meanwhile."
        ),
    ] = False,
    programs: Annotated[int, typer.Option(min=1, help="With --memory: number of copies that run at a time.")] = 4,
    cgroup: Annotated[
        bool,
        typer.Option(
            help="Limit memory with a cgroup if the machine allows it. --no-cgroup: test the limits that are used on "
            "machines without cgroups.",
        ),
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Test the sandbox in which programs run that a model wrote, and print the outcome of each attack.

    The attacks are programs that try to escape, to exhaust the machine, or to pass their tests by fraud. The exit code
    is 1 if one of them succeeded.

    Example: [cyan]egpo audit sandbox --tier bubblewrap[/]
    """
    from rich.console import Console
    from rich.table import Table

    from egpo.cli.silence import now_doing
    from egpo.rewards.sandbox.audit import audit, measure_memory

    sandbox, detail = _sandbox(tier, cgroup)
    with Console(stderr=True).status("testing the sandbox") as status:
        rows = []
        for finding in measure_memory(sandbox, programs) if memory else audit(sandbox):
            rows.append(asdict(finding))
            status.update(f"testing the sandbox: {finding.attempt}")
            now_doing(f"testing the sandbox; {len(rows)} attacks are done")
    num_through = sum(not row["contained"] for row in rows)
    if as_json:
        answer = {"tier": sandbox.tier, "protection": detail, "got_through": num_through, "attempts": rows}
        typer.echo(json.dumps(answer, indent=2))
    else:
        measured = ("host MB", "one sandbox MB", "limit MB") if memory else ()
        table = Table("attempt", "what happened", *measured, "contained", title=detail)
        for row in rows:
            numbers = [f"{row[key]:.0f}" for key in ("host_mb", "sandbox_mb", "bound_mb")] if memory else []
            contained = "yes" if row["contained"] else "[bold red]NO"
            table.add_row(row["attempt"], row["happened"], *numbers, contained)
        console = Console()
        console.print(table)
        console.print(f"{len(rows)} attempts, {num_through} not contained")
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
            what = "--no-cgroup works only with the bubblewrap sandbox"
            raise InputError(what, where="egpo audit sandbox", fix="add --tier bubblewrap")
        sandbox = replace(sandbox, divide_memory=True)
    return sandbox, describe(sandbox)


HELP = """Check a reward on stored rollouts, play stored episodes again, or test the sandbox in which programs run.

Example: [cyan]egpo audit rewards runs/tiny/rollouts/step_10.jsonl --against stored[/]
"""

audit_app = typer.Typer(no_args_is_help=True, help=HELP, rich_markup_mode="rich")
audit_app.command("sandbox")(audit_sandbox)

FILE_HELP = "File of rollouts: JSON lines that egpo or verl wrote, or parquet with a column `response`."
REWARD_HELP = (
    "Reward to judge with: the name of a reward or data source, with @MODE if it has modes (gsm8k, "
    "function_calling@plain), or module:function. Default: the one that each row's data source names."
)
AGAINST_HELP = (
    "Compare with a second reward, or with the scores in the file (`stored`), and show the rows that differ. "
    "Default: no comparison."
)


@audit_app.command("rewards")
def rewards(
    file: Annotated[Path, typer.Argument(help=FILE_HELP)],
    reward: Annotated[str | None, typer.Option(help=REWARD_HELP)] = None,
    against: Annotated[str | None, typer.Option(help=AGAINST_HELP)] = None,
    workers: Annotated[
        int | None, typer.Option(help="Number of worker processes. 0: use no workers. Default: one per core.")
    ] = None,
    rows: Annotated[int, typer.Option(min=0, help="With --against: show at most N rows that differ.")] = 20,
    limit: Annotated[int | None, typer.Option(min=1, help="Read only the first N rows. Default: all.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Judge stored rollouts again: print accuracy, mean reward, the reasons, and how often the checker failed.

    Responses on which the checker failed are left out of accuracy and mean reward. Rollouts in a run folder are judged
    in the reward mode that the run's config.yaml sets, unless --reward names a mode (NAME@MODE).

    Example: [cyan]egpo audit rewards rollouts.jsonl --reward gsm8k --against stored[/]
    """
    import json

    from egpo.audits import audit_rewards
    from egpo.cli.audit_tables import as_json_value, print_audit
    from egpo.cli.progress import counted
    from egpo.cli.silence import now_doing

    now_doing(f"judging the rows of {file}")
    watch = counted("rows")
    done = audit_rewards(file, reward=reward, against=against, workers=workers, limit=limit, keep=rows, watch=watch)
    if as_json:
        typer.echo(json.dumps(as_json_value(done, reward, against), indent=2))
    else:
        print_audit(done, reward, against)


PATHS_HELP = "Run folder, folder with responses, or file of `rollouts/` or `evals/`. May be repeated."
ENVIRONMENT_HELP = (
    "Also play episodes of this environment of your own, as in my_environment:MyClass, or with this reward function. "
    "Its code runs. May be repeated. Default: only environments of the package."
)


@audit_app.command("episodes")
def episodes(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH", help=PATHS_HELP)],
    environment: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help=ENVIRONMENT_HELP, show_default=False)
    ] = None,
    rows: Annotated[int, typer.Option(min=0, help="Show at most N episodes that differ.")] = 20,
    limit: Annotated[int | None, typer.Option(min=1, help="Play only the first N episodes. Default: all.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Play stored episodes again, with the texts that the model wrote, and print where they differ from the record.

    Results of tools, changes of state, the user's words and the verdict are compared. Episodes of environments that
    are not deterministic, and episodes in which the environment failed, are counted and left out. The exit code is 1 if
    an episode differs.

    Example: [cyan]egpo audit episodes runs/toolbox[/]
    """
    from egpo.audits import audit_episodes
    from egpo.cli.audit_tables import episodes_as_json, print_episodes
    from egpo.cli.progress import counted
    from egpo.cli.silence import now_doing

    now_doing(f"playing the episodes of {paths[0]} again")
    done = audit_episodes(paths, environments=environment or (), limit=limit, keep=rows, watch=counted("episodes"))
    if as_json:
        typer.echo(json.dumps(episodes_as_json(done), indent=2))
    else:
        print_episodes(done)
    if done.num_different:
        raise typer.Exit(1)
