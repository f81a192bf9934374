"""`egpo train`: reinforcement learning on a task, from a recipe."""

from functools import partial
from typing import Annotated

import typer

from egpo.cli.config import Recipe

Resume = Annotated[
    bool, typer.Option("--resume", help="Continue the interrupted run of this recipe from its latest checkpoint.")
]
ResumeFrom = Annotated[
    int | None,
    typer.Option(
        "--resume-from",
        metavar="STEP",
        help="Continue from the checkpoint of this step. Metrics and checkpoints of later steps are removed.",
        show_default=False,
    ),
]
DRY_RUN_HELP = (
    "Run one step on a few samples, print memory, disk space and time, and keep nothing. With engine=verl: print the "
    "command that would start verl, and run nothing."
)
DryRun = Annotated[bool, typer.Option("--dry-run", help=DRY_RUN_HELP)]
ADDRESS_HELP = "With engine=verl: join the Ray cluster at this address. Default: start Ray on this machine."
JSON_HELP = "Print one JSON object per step (step, metrics, timings) to stdout, and nothing else there."
AsJson = Annotated[bool, typer.Option("--json", help=JSON_HELP)]
Address = Annotated[str | None, typer.Option("--address", metavar="HOST:PORT", help=ADDRESS_HELP, show_default=False)]


def train(
    recipe: Recipe = None,
    resume: Resume = False,
    resume_from: ResumeFrom = None,
    dry_run: DryRun = False,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Train a model by reinforcement learning with GRPO or EGPO, as a recipe says.

    Training runs in this process on a CPU or one GPU; with engine=verl it runs in verl, also on many GPUs. Metrics,
    rollouts and checkpoints are written to a folder named after the recipe's settings `runs` and `name`. An interrupted
    run continues with --resume; on a CPU its result is identical to that of an uninterrupted run.

    Example: [cyan]egpo train countdown_tiny rollout.n=8 name=first[/]
    """
    from egpo import engines
    from egpo.cli.config import recipe_words
    from egpo.cli.progress import steps_as_json
    from egpo.cold_starts import require_inputs, with_cold_start
    from egpo.config import load_config
    from egpo.errors import InputError
    from egpo.prepared_data import require_source, with_prepared_data
    from egpo.runs.live import warnings_printed_by

    path, overrides = recipe_words(recipe, "egpo train countdown_tiny")
    config = load_config(path, [*overrides, *([f"verl.address={address}"] if address else [])])
    if address and config.engine != "verl":
        fix = "leave out --address, or set engine=verl"
        raise InputError("the engine `local` cannot join a Ray cluster", where="--address", fix=fix)
    if not dry_run:
        config = require_inputs(config, str(path))
        if as_json:
            with steps_as_json(config.name) as on_step:
                engines.train(config, resume=resume, resume_from=resume_from, on_step=on_step, quiet=True)
        else:
            engines.train(config, resume=resume, resume_from=resume_from)
        return
    if as_json:
        raise InputError("a dry run has no steps", where="--json", fix="leave out --dry-run or --json")
    if config.engine == "verl" and config.prepare.source is not None:
        # verl's dry run reads no data: it prints the paths that training would read, whether they exist or not.
        require_source(config)
        config = with_prepared_data(with_cold_start(config))
    else:
        config = require_inputs(config, str(path))
    with warnings_printed_by(partial(typer.echo, err=True)):
        typer.echo(engines.dry_run(config, resume=resume, resume_from=resume_from))
