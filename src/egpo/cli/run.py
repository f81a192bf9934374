"""`egpo run`: an experiment from one file to one report."""

import os
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from egpo.experiments.experiment import Experiment
    from egpo.experiments.selection import Selection

ONLY_HELP = "These stages alone, as in train,merge,eval: prepare, probe, train, merge, eval, report."
FROM_HELP = "This stage and all after it, even where nothing has changed. (A training goes on; it is not begun again.)"
SEEDS_HELP = "Each recipe once for each of these seeds, as in 0,1,2: the runs are called NAME-s0 and so on."

Words = Annotated[
    list[str],
    typer.Argument(metavar="RECIPE... [KEY=VALUE]...", help="YAML files, then dotted overrides.", show_default=False),
]


def run(
    words: Words,
    only: Annotated[str | None, typer.Option("--only", metavar="STAGES", help=ONLY_HELP, show_default=False)] = None,
    start: Annotated[str | None, typer.Option("--from", metavar="STAGE", help=FROM_HELP, show_default=False)] = None,
    seeds: Annotated[str | None, typer.Option("--seeds", help=SEEDS_HELP, show_default=False)] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done. Loads and writes nothing.")
    ] = False,
) -> None:
    """Run experiments whole: data, probe, training, merge, evaluation, report.

    What was done is not done again while nothing that it was made of has changed. Ended in the middle, however it
    ended, the same command goes on where it was. Several recipes share their data and end in a comparison.

    Example: [cyan]egpo run recipes/countdown_tiny.yaml name=first steps=10[/]
    """
    from egpo.experiments.loading import load_experiments
    from egpo.experiments.selection import Selection

    recipes, overrides = _recipes_and_overrides(words)
    selection = Selection.of([] if only is None else [name.strip() for name in only.split(",")], start)
    experiments = load_experiments(recipes, overrides, _numbers(seeds))
    if dry_run:
        _show(experiments, selection)
    else:
        _run(experiments, selection)


def _run(experiments: "Sequence[Experiment]", selection: "Selection") -> None:
    from rich.console import Console

    from egpo.cli.eval_progress import shown_progress
    from egpo.experiments.experiments import run_experiments
    from egpo.experiments.screen import Screen

    console = Console(highlight=False)
    screen = Screen(say=lambda line: console.print(line, markup=False, soft_wrap=True), watched=shown_progress)
    run_experiments(experiments, selection, screen)


def _show(experiments: "Sequence[Experiment]", selection: "Selection") -> None:
    """The plans of all; then, with exit code 2, a source that is not on this machine."""
    from egpo.experiments.plan import planned
    from egpo.experiments.prepared import require_source

    for experiment in experiments:
        typer.echo(planned(experiment, selection))
    for experiment in experiments:
        if "prepare" in selection.stages:
            require_source(experiment.config)


def _recipes_and_overrides(words: list[str]) -> tuple[list[str], list[str]]:
    """A word with a `=` is an override, unless there is a file of that name."""
    recipes = [word for word in words if "=" not in word or os.path.isfile(word)]
    return recipes, [word for word in words if word not in recipes]


def _numbers(text: str | None) -> list[int]:
    from egpo.errors import InputError

    try:
        return [int(word) for word in text.split(",")] if text else []
    except ValueError as error:
        raise InputError(f"`{text}`", where="--seeds", fix="whole numbers, as in 0,1,2") from error
