"""`egpo audit`: do the rewards judge rightly, does the sandbox hold?"""

from pathlib import Path
from typing import Annotated

import typer

from egpo.cli.audit_sandbox import audit_sandbox

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
    from egpo.cli.data_tables import counted

    watch = counted("rows")
    done = audit_rewards(file, reward=reward, against=against, workers=workers, limit=limit, keep=rows, watch=watch)
    if as_json:
        typer.echo(json.dumps(as_json_value(done, reward, against), indent=2))
    else:
        print_audit(done, reward, against)
