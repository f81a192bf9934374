"""`egpo prepare`: data for a task, as verl parquet."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from egpo.tasks.prepare import Preparation

HELP = """Write a task's data as verl parquet: train, test and a manifest.

Example: [cyan]egpo prepare countdown --out data/countdown[/]
"""

prepare_app = typer.Typer(no_args_is_help=True, help=HELP, rich_markup_mode="rich")

VERBS = {
    "countdown": """Numbers and a target: drawn and solvable by construction, or rows {target, nums} of a source.

    Of an undivided source the first 327,680 rows are for training and the next 1,024 for testing.

    Example: [cyan]egpo prepare countdown --out data/countdown --train 4096 --test 512[/]
    """,
    "gsm8k": """Word problems {question, answer}; without a source, small generated ones stand in for GSM8K.

    Example: [cyan]egpo prepare gsm8k --out data/gsm8k --source openai/gsm8k[/]
    """,
    "function-calling": """Multi-turn tool conversations: generated, or raw turns, OpenAI messages or xlam rows.

    Example: [cyan]egpo prepare function-calling --out data/tools --seed 1[/]
    """,
    "code": """Programming problems with tests: generated, or rows {question, tests, solution}.

    Example: [cyan]egpo prepare code --out data/code[/]
    """,
    "mixed": """Mathematics and code in one set, told apart by `ability`.

    Example: [cyan]egpo prepare mixed --out data/mixed --train 48 --test 16[/]
    """,
}

SOURCE_HELP = "A file (JSON, JSON lines, parquet), a directory with train and test, or owner/name on the hub."


def _verb(task_name: str) -> Callable[..., None]:
    def verb(
        out: Annotated[Path, typer.Option(help="Directory for train.parquet, test.parquet and manifest.json.")],
        source: Annotated[str | None, typer.Option(help=SOURCE_HELP)] = None,
        train: Annotated[int | None, typer.Option(help="Rows for training.")] = None,
        test: Annotated[int | None, typer.Option(help="Rows for testing.")] = None,
        seed: Annotated[int, typer.Option(help="Seed of the generator.")] = 0,
        force: Annotated[bool, typer.Option("--force", help="Replace what the directory holds.")] = False,
        json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")] = False,
    ) -> None:
        from egpo.cli.progress import counted
        from egpo.tasks.load import TASKS
        from egpo.tasks.prepare import prepare

        task = TASKS[task_name.replace("-", "_")]()
        watch = counted("rows")
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
