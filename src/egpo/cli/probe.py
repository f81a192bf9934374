"""`egpo probe`: test before training whether a model can learn from a task."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from egpo.cli.config import Recipe

if TYPE_CHECKING:
    from egpo.config import Config
    from egpo.evals.evaluate import Exam, ExamProblems
    from egpo.evals.responses import Sampling
    from egpo.probes.keep import PassRange
    from egpo.probes.probe import Probe
    from egpo.probes.subject import Subject

MODEL_HELP = "Model folder, run folder, or model name on the hub. Default: the recipe's model."
TASK_HELP = "Task to sample from: a name such as countdown, or module:Class. Default: the recipe's, or the run's."
SET_HELP = "Setting of the task, as in max_numbers=3. May be repeated."
LENGTH_HELP = "Longest response, in tokens. Default: the recipe's, or 1024."
KEEP_HELP = (
    "Write the problems whose pass rate is in this range, as in 0.1:0.9, to --out as data; and as many problems drawn "
    "at random, as a control."
)
OUT_HELP = "Folder for the results. Default: `evals` in the recipe's run folder, or `evals` in the current folder."


def probe(
    recipe: Recipe = None,
    model: Annotated[str | None, typer.Option(help=MODEL_HELP, show_default=False)] = None,
    task: Annotated[str | None, typer.Option(help=TASK_HELP, show_default=False)] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help=SET_HELP)] = None,
    n: Annotated[int, typer.Option("--n", min=2, help="Responses sampled per problem.")] = 16,
    problems: Annotated[
        int, typer.Option(min=1, help="Number of problems, drawn at random from the training split.")
    ] = 64,
    temperature: Annotated[
        float | None,
        typer.Option(min=0.01, help="Sampling temperature. Default: the recipe's, or 1.", show_default=False),
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help=LENGTH_HELP, show_default=False)] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of the sampling. Default: the recipe's, or 0.", show_default=False)
    ] = None,
    device: Annotated[
        Literal["auto", "cpu", "cuda"] | None,
        typer.Option(help="Device of the model. Default: the recipe's, or auto.", show_default=False),
    ] = None,
    keep: Annotated[str | None, typer.Option(metavar="LOW:HIGH", help=KEEP_HELP, show_default=False)] = None,
    out: Annotated[Path | None, typer.Option(help=OUT_HELP, show_default=False)] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace problems that an earlier --keep wrote to --out.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Test before training whether a model can learn from a task, by sampling responses to training problems.

    Only groups of responses whose rewards differ are informative: the others give no gradient. Accuracy, pass@k, reward
    variance, entropy, the expected fraction of informative groups for each group size, and advice are printed. With
    --keep, problems that are neither too easy nor too hard are written as data.

    Example: [cyan]egpo probe --model egpo-tiny --task gsm8k --set max_value=200[/]
    """
    from egpo.cli.eval import parsed_settings
    from egpo.cli.probe_tables import print_kept, print_probe
    from egpo.probes.keep import write_kept
    from egpo.probes.probe import draw_exam
    from egpo.probes.store import as_json_value, write_probe
    from egpo.probes.subject import find_subject

    kept_range = _kept_range(keep, out, force)
    subject = find_subject(
        _prepared(recipe) if recipe else None,
        model=model,
        task=task,
        settings=parsed_settings(settings or ()),
        device=device,
        out=out,
    )
    sampling = subject.sampling(n, temperature=temperature, max_tokens=max_tokens, seed=seed)
    paper = draw_exam(_exam(subject, problems, sampling))
    outcome = _probed(subject, paper)
    path = write_probe(subject.folder, outcome, subject.origin)
    if not as_json:
        print_probe(outcome, path)
    kept = write_kept(outcome, paper, kept_range, out, force=force) if kept_range and out else None
    if as_json:
        value = as_json_value(outcome, subject.origin) | {"file": str(path), "kept": asdict(kept) if kept else None}
        typer.echo(json.dumps(value, indent=2, default=str))
    elif kept:
        print_kept(kept)


def _prepared(words: list[str]) -> "Config":
    from egpo.cli.config import split_words
    from egpo.cold_starts import require_inputs
    from egpo.config import load_config

    path, overrides = split_words(words)
    return require_inputs(load_config(path, overrides), str(path))


def _kept_range(keep: str | None, out: Path | None, force: bool) -> "PassRange | None":
    from egpo.errors import InputError
    from egpo.probes.keep import PassRange, require_free_folders

    if keep is None:
        return None
    kept_range = PassRange.parse(keep)
    if out is None:
        raise InputError("--keep needs --out", where="--keep", fix="name a folder for the kept problems with --out")
    require_free_folders(out, force=force)
    return kept_range


def _exam(subject: "Subject", num_problems: int, sampling: "Sampling") -> "Exam":
    from egpo.evals.evaluate import Exam
    from egpo.evals.intervals import default_ks

    task = subject.config.task
    return Exam(task.name, task.settings, "train", num_problems, sampling, default_ks(sampling.n))


def _probed(subject: "Subject", paper: "ExamProblems") -> "Probe":
    from egpo.cli.progress import shown_progress
    from egpo.probes.probe import probe as probe_model
    from egpo.runs.live import warnings_printed_by

    with shown_progress(subject.place.label) as view, warnings_printed_by(view.say):
        return probe_model(subject.load(), paper, view.watch)
