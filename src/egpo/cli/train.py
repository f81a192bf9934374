"""`egpo train`: reinforcement on a task, out of a recipe."""

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from egpo.cli.config import Recipe

if TYPE_CHECKING:
    from egpo.config import Config

Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run of this name, from its latest checkpoint.")]
ResumeFrom = Annotated[
    int | None,
    typer.Option(
        "--resume-from",
        metavar="STEP",
        help="Go on from this checkpoint. What the run left of later steps is removed.",
        show_default=False,
    ),
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Try everything on a few samples, and keep nothing. With verl: show its command."),
]
Address = Annotated[
    str | None,
    typer.Option("--address", metavar="HOST:PORT", help="With verl: join this Ray cluster.", show_default=False),
]


def train(
    recipe: Recipe = None,
    resume: Resume = False,
    resume_from: ResumeFrom = None,
    dry_run: DryRun = False,
    address: Address = None,
) -> None:
    """Train with GRPO or EGPO: in this process on a CPU or one GPU, or with engine=verl on many.

    The run lies in `runs`/`name`: metrics, rollouts, checkpoints. One that ended before its last step, however it
    ended, goes on with --resume as if it had not.

    Example: [cyan]egpo train examples/recipe.yaml rollout.n=8 name=first[/]
    """
    from egpo.cli.config import split_words
    from egpo.config import load_config
    from egpo.errors import InputError
    from egpo.experiments.prepared import require_prepared_data, require_source, with_prepared_data

    path, overrides = split_words(recipe)
    config = load_config(path, [*overrides, *([f"verl.address={address}"] if address else [])])
    if address and config.engine != "verl":
        fix = "leave it out, or say engine=verl"
        raise InputError("the embedded engine joins no cluster", where="--address", fix=fix)
    if not dry_run:
        config = require_prepared_data(config, str(path))
    elif config.prepare.source is not None:
        # What the training would read, whether it is prepared yet or not.
        require_source(config)
        config = with_prepared_data(config) if config.engine == "verl" else require_prepared_data(config, str(path))
    if config.engine == "verl":
        _train_on_verl(config, resume=resume, resume_from=resume_from, dry_run=dry_run)
    elif dry_run:
        from egpo.local.training.dry_run import dry_run as try_out
        from egpo.runs.live import warnings_printed_by

        with warnings_printed_by(partial(typer.echo, err=True)):
            typer.echo(try_out(config))
    else:
        from egpo.local.train import train as train_here

        train_here(config, resume=resume, resume_from=resume_from)


def _train_on_verl(config: "Config", *, resume: bool, resume_from: int | None, dry_run: bool) -> None:
    if dry_run:
        from egpo.verl.launch.dry_run import dry_run as show

        typer.echo(show(config, resume=resume, resume_from=resume_from))
        return
    from egpo.verl.launch.train import train as launch

    launch(config, resume=resume, resume_from=resume_from)
