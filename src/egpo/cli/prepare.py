"""`egpo prepare`: write the problems of a task as verl parquet files."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from egpo.tasks.preparation import Preparation

HELP = """Write the problems of a task as verl parquet files, for training and testing, with a manifest of checksums.

Example: [cyan]egpo prepare countdown --out data/countdown[/]
"""

prepare_app = typer.Typer(no_args_is_help=True, help=HELP, rich_markup_mode="rich")

VERBS = {
    "countdown": """Write Countdown problems: generated ones (all solvable), or rows {target, nums} of a source.

    If the source is not split, its first 327,680 rows are for training and the next 1,024 for testing.

    Example: [cyan]egpo prepare countdown --out data/countdown --train 4096 --test 512[/]
    """,
    "gsm8k": """Write math word problems: generated ones, or rows {question, answer} of a source such as GSM8K.

    Example: [cyan]egpo prepare gsm8k --out data/gsm8k --source openai/gsm8k[/]
    """,
    "function-calling": """Write tool-calling conversations: generated, or HardGen, OpenAI or xlam rows of a source.

    Example: [cyan]egpo prepare function-calling --out data/tools --seed 1[/]
    """,
    "code": """Write programming problems with tests: generated ones, or rows {question, tests, solution} of a source.

    Example: [cyan]egpo prepare code --out data/code[/]
    """,
    "mixed": """Write math and code problems as one dataset. The column `ability` says of which kind each row is.

    Example: [cyan]egpo prepare mixed --out data/mixed --train 48 --test 16[/]
    """,
    "bfcl": """Write single-turn cases of the BFCL benchmark: of the package bfcl-eval, or of a source.

    The source is the folder bfcl_eval/data, or a wheel of bfcl-eval. Without one, the wheel is fetched from the package
    index, once. unseen.parquet contains the cases of the categories that are never trained on.

    Example: [cyan]egpo prepare bfcl --out data/bfcl[/]
    """,
}

SOURCE_HELP = (
    "Source of the problems: a file (JSON, JSON lines, parquet), a folder with train and test files, or a dataset "
    "OWNER/NAME on the hub. Default: problems are generated."
)


def _verb(task_name: str) -> Callable[..., None]:
    def verb(
        out: Annotated[Path, typer.Option(help="Folder for train.parquet, test.parquet and manifest.json.")],
        source: Annotated[str | None, typer.Option(help=SOURCE_HELP)] = None,
        train: Annotated[
            int | None,
            typer.Option(help="Number of rows for training. Default: the task's number, or all of the source."),
        ] = None,
        test: Annotated[
            int | None,
            typer.Option(help="Number of rows for testing. Default: the task's number, or all of the source."),
        ] = None,
        seed: Annotated[int, typer.Option(help="Seed of generated problems.")] = 0,
        force: Annotated[
            bool, typer.Option("--force", help="Replace prepared files that are already in the folder.")
        ] = False,
        json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    ) -> None:
        from egpo.cli.progress import counted
        from egpo.cli.silence import now_doing
        from egpo.tasks.loading import SOURCED_TASKS
        from egpo.tasks.preparation import prepare

        task = SOURCED_TASKS[task_name.replace("-", "_")]()
        watch = counted("rows")
        now_doing(f"preparing the data of {task_name}")
        _print(
            prepare(task, out, source=source, train=train, test=test, seed=seed, force=force, watch=watch), as_json=json
        )

    return verb


for _name, _doc in VERBS.items():
    prepare_app.command(_name, help=_doc)(_verb(_name))


def _print(done: "Preparation", *, as_json: bool) -> None:
    from dataclasses import asdict
    from json import dumps

    from rich.console import Console

    from egpo.cli.tables import dropped_table, table

    if as_json:
        typer.echo(dumps(asdict(done), indent=2))
        return
    console = Console()
    rows = [(name, f"{entry.rows:,}", entry.sha256[:16]) for name, entry in done.files.items()]
    console.print(table(f"{done.out} (source: {done.source})", ("file", "rows", "sha256"), rows))
    if done.dropped:
        console.print(dropped_table(done.dropped))
