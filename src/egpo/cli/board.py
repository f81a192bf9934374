"""`egpo board`: compare many methods on several tasks with several seeds, and write one page."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from egpo.boards.board_file import Board
    from egpo.boards.cells import Cell
    from egpo.boards.judgement import Judgement

BOARD_HELP = "Board file (YAML): name, tasks, methods, seeds, baseline. docs/board.md lists the keys."
PLAN_HELP = "Print the table of runs and what is missing, without running anything."
PAGE_HELP = "Only write the page and board.json, from the runs that are there."


def board(
    path: Annotated[Path, typer.Argument(metavar="BOARD.yaml", help=BOARD_HELP, show_default=False)],
    plan: Annotated[bool, typer.Option("--plan", help=PLAN_HELP)] = False,
    page: Annotated[bool, typer.Option("--page", help=PAGE_HELP)] = False,
) -> None:
    """Compare many methods: train every method on every task with every seed, then judge all differences together.

    Each run is an `egpo run` in the folder of the board. Finished runs are skipped, interrupted ones continue, and a
    failed one does not stop the others. All faults of the board are reported before the first run. The page board.md
    and board.html has, for each task, accuracies, differences from the baselines with intervals and corrected p-values,
    cost, entropy and learning curves.

    Example: [cyan]egpo board board.yaml --plan[/]
    """
    from egpo.boards.board_file import load_board
    from egpo.boards.cells import load_cells, require_fit, run_cells
    from egpo.cli.progress import terminal_screen
    from egpo.cli.silence import now_doing
    from egpo.errors import InputError

    if plan and page:
        raise InputError("--plan and --page cannot be combined", where="egpo board", fix="leave one of them out")
    now_doing(f"reading {path}")
    chosen = load_board(path)
    cells = load_cells(chosen)
    if plan:
        require_fit(chosen, cells)
        _print_plan(chosen, cells)
        return
    failures: dict[str, str] = {}
    if not page:
        require_fit(chosen, cells)
        failures = run_cells(chosen, cells, terminal_screen())
    now_doing("judging the runs")
    _write(chosen, cells, failures)
    if failures:
        raise typer.Exit(1)


def _print_plan(chosen: "Board", cells: "Sequence[Cell]") -> None:
    """Print a table with the state of each method's seeds on each task, and the number of steps that are left."""
    from rich.console import Console

    from egpo.boards.cells import missing
    from egpo.cli.tables import safe_table

    console = Console(highlight=False, emoji=False)
    states = {(cell.task, cell.method, cell.seed): missing(cell) for cell in cells}
    columns = ["task", "method", *(f"seed {seed}" for seed in chosen.seeds)]
    rows = [
        [task, method, *(_short(states[task, method, seed]) for seed in chosen.seeds)]
        for task in chosen.tasks
        for method in chosen.methods
    ]
    console.print(safe_table(f"{chosen.name}: {chosen.folder}", columns, rows, num_text=len(columns)))
    left = [cell for cell in cells if states[cell.task, cell.method, cell.seed] is not None]
    steps = sum(cell.experiment.config.steps for cell in left)
    console.print(
        f"{len(left)} of {len(cells)} runs are missing (-: not started), {steps:,} steps at most; "
        f"{chosen.parallel} at a time."
    )


def _short(state: str | None) -> str:
    """Return the state of a run for the table of the plan."""
    from egpo.boards.cells import NOT_STARTED

    return "done" if state is None else "-" if state == NOT_STARTED else state


def _write(chosen: "Board", cells: "Sequence[Cell]", failures: dict[str, str]) -> None:
    from egpo.boards.board_page import write_page
    from egpo.boards.cells import keep_board_file
    from egpo.boards.judgement import judge, write_json

    keep_board_file(chosen)
    judgement = judge(chosen, cells, failures)
    write_json(judgement, chosen.results)
    pages = write_page(chosen, cells, judgement)
    _print_judgement(judgement)
    for path in (chosen.results, *pages):
        typer.echo(path)


def _print_judgement(judgement: "Judgement") -> None:
    from rich.console import Console

    from egpo.boards.board_page import accuracy_text, cells_of, changes_text, finding_text
    from egpo.cli.tables import cell, safe_table

    console = Console(highlight=False, emoji=False)
    for one in judgement.tasks:
        rows = [
            [row.name, accuracy_text(row.accuracy), *cells_of(row, judgement)[2:4], finding_text(row, judgement)]
            for row in (*one.before, *one.rows)
        ]
        columns = ["method", "accuracy", f"from {judgement.baseline}", "p", "verdict"]
        console.print(safe_table(f"{one.task}: {one.exam}, {one.num_problems:,} problems", columns, rows, num_text=5))
        for row in one.rows:
            if text := changes_text(row):
                console.print(cell(f"{row.name} {text}"))
        for found in one.unfair:
            console.print(f"[bold red]Not a fair comparison:[/] {cell(found)}")
    for hole in judgement.holes:
        console.print(cell(f"{hole.cell}: {'failed' if hole.failed else 'missing'}: {hole.reason}"))
