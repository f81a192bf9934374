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
DryRun = Annotated[bool, typer.Option("--dry-run", help="Try everything on a few samples, and keep nothing.")]


def train(
    recipe: Recipe = None, resume: Resume = False, resume_from: ResumeFrom = None, dry_run: DryRun = False
) -> None:
    """Train with GRPO or EGPO, in this process, on a CPU or one GPU.

    The run lies in `runs`/`name`: metrics, rollouts, checkpoints. One that ended before its last step, however it
    ended, goes on with --resume as if it had not.

    Example: [cyan]egpo train examples/recipe.yaml rollout.n=8 name=first[/]
    """
    from egpo.cli.config import split_words
    from egpo.config import load_config

    config = load_config(*split_words(recipe))
    _require_local_engine(config)
    if dry_run:
        from egpo.local.dry_run import dry_run as try_out
        from egpo.local.quiet import warnings_said_by

        with warnings_said_by(partial(typer.echo, err=True)):
            typer.echo(try_out(config))
        return
    from egpo.local.train import train as train_run

    train_run(config, resume=resume, resume_from=resume_from)


def _require_local_engine(config: "Config") -> None:
    from egpo.errors import InputError

    if config.engine != "local":
        raise InputError(
            f"engine={config.engine}", where="egpo train", fix="this version has only the embedded one: engine=local"
        )
