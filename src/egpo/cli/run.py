"""`egpo run`: run whole experiments, from recipe to report."""

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from egpo.cli.train import AsJson
from egpo.cli.words import complete_word
from egpo.experiments.stages import STAGES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from egpo.experiments.experiment import Experiment
    from egpo.experiments.stages import Selection
    from egpo.runs.removed import Keep

ONLY_HELP = f"Run only these stages, separated by commas: {', '.join(STAGES)}. Default: all."
FROM_HELP = (
    "Run this stage and all later ones again, even if nothing has changed. Training continues from its latest "
    "checkpoint. Default: only stages whose inputs or outputs have changed are run again."
)
SEEDS_HELP = (
    "Run each recipe once per seed, as in 0,1,2. The runs are named NAME-s0, NAME-s1, ... Default: the recipe's seed."
)
PARALLEL_HELP = (
    "Run this many experiments at the same time, each in its own process. They share the machine and its GPU. Default: "
    "1, one after the other."
)
KEEP_HELP = (
    "What stays of the checkpoints after the trained model is evaluated: `all`, `weights` (the model without the "
    "optimizer state) or `results` (no model). Such a run cannot be resumed. Default: all."
)
DRY_RUN_HELP = "Print what would be done, without doing it."
WORDS_HELP = (
    "Recipes (names that `egpo recipes` lists, or YAML files), then settings that override all of them, such as "
    "update.lr=2e-6."
)

Words = Annotated[
    list[str],
    typer.Argument(
        metavar="RECIPE... [KEY=VALUE]...", help=WORDS_HELP, show_default=False, autocompletion=complete_word
    ),
]


def run(
    words: Words,
    only: Annotated[str | None, typer.Option("--only", metavar="STAGES", help=ONLY_HELP, show_default=False)] = None,
    start: Annotated[str | None, typer.Option("--from", metavar="STAGE", help=FROM_HELP, show_default=False)] = None,
    seeds: Annotated[str | None, typer.Option("--seeds", help=SEEDS_HELP, show_default=False)] = None,
    parallel: Annotated[
        int, typer.Option("--parallel", metavar="N", min=1, help=PARALLEL_HELP, show_default=False)
    ] = 1,
    keep: Annotated[str, typer.Option("--keep", metavar="WHAT", help=KEEP_HELP, show_default=False)] = "all",
    dry_run: Annotated[bool, typer.Option("--dry-run", help=DRY_RUN_HELP)] = False,
    as_json: AsJson = False,
) -> None:
    from egpo.errors import InputError
    from egpo.experiments.stages import Selection
    from egpo.experiments.validate import load_experiments

    recipes, overrides = _recipes_and_overrides(words)
    selection = Selection.of([] if only is None else [name.strip() for name in only.split(",")], start)
    selection = replace(selection, keep=_kept(keep))
    experiments = load_experiments(recipes, overrides, _numbers(seeds))
    if dry_run and as_json:
        raise InputError("a dry run has no steps", where="--json", fix="leave out --dry-run or --json")
    if parallel > 1 and as_json:
        fix = "leave one of them out: with --parallel the steps of each run are in its output.log"
        raise InputError("--json and --parallel cannot be combined", where="egpo run", fix=fix)
    if dry_run:
        _show(experiments, selection)
    else:
        _run(experiments, selection, as_json, parallel)


run.__doc__ = f"""Run whole experiments: {"; ".join(f"{stage.summary} ({stage.name})" for stage in STAGES.values())}.

    A stage is skipped if its inputs and outputs have not changed since it last ran. An interrupted experiment continues
    when the same command is given again. If several recipes are given, their runs are compared at the end.

    Example: [cyan]egpo run countdown_tiny name=first steps=10[/]
    Several seeds side by side: [cyan]egpo run gsm8k_smollm2 gsm8k_smollm2_egpo --seeds 0,1,2 --parallel 3[/]
    """


def _run(experiments: "Sequence[Experiment]", selection: "Selection", as_json: bool, parallel: int) -> None:
    from egpo.cli.progress import terminal_screen
    from egpo.experiments.pipeline import run_experiments

    run_experiments(experiments, selection, terminal_screen(as_json=as_json), parallel)


def _show(experiments: "Sequence[Experiment]", selection: "Selection") -> None:
    """Print what each experiment would do. Raise InputError if a source of data is not on this machine, or if the
    server that evaluates the models would refuse its options."""
    from egpo.experiments.exams import require_evaluable
    from egpo.experiments.plan_text import planned
    from egpo.prepared_data import require_source

    for experiment in experiments:
        typer.echo(planned(experiment, selection))
    for experiment in experiments:
        if STAGES["prepare"] in selection.stages:
            require_source(experiment.config)
        if STAGES["eval"] in selection.stages:
            require_evaluable(experiment.training)


def _recipes_and_overrides(words: list[str]) -> tuple[list[str], list[str]]:
    """Split the command's arguments into recipes and overrides.

    An argument with a `=` is an override, unless there is a file of that name.
    """
    recipes = [word for word in words if "=" not in word or os.path.isfile(word)]
    return recipes, [word for word in words if word not in recipes]


def _kept(word: str) -> "Keep":
    from egpo.errors import InputError, nearest
    from egpo.runs.removed import KEEPS

    for keep in KEEPS:
        if word == keep:
            return keep
    raise InputError(f"unknown value `{word}`", where="--keep", fix=nearest(word, KEEPS))


def _numbers(text: str | None) -> list[int]:
    from egpo.errors import InputError

    try:
        return [int(word) for word in text.split(",")] if text else []
    except ValueError as error:
        what = f"`{text}` is not a list of whole numbers"
        raise InputError(what, where="--seeds", fix="separate whole numbers by commas, as in 0,1,2") from error
