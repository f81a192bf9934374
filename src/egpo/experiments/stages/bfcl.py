"""The official evaluator of function calling, on the model before the training and after it."""

from functools import partial
from pathlib import Path

from egpo.config.machine import model_folder
from egpo.config.schema import Bfcl
from egpo.evals.bfcl.categories import parse_categories
from egpo.evals.bfcl.job import Asked
from egpo.evals.bfcl.run import Outcome, Wanted, evaluate_bfcl
from egpo.evals.bfcl.targets import Target
from egpo.evals.store import file_name
from egpo.experiments.experiment import Experiment
from egpo.experiments.job import Job
from egpo.experiments.models import Which, place_of
from egpo.experiments.prints import digest_of, model_identity
from egpo.experiments.screen import Screen


def bfcl_jobs(experiment: Experiment, screen: Screen) -> list[Job]:
    """One a model."""
    chosen = experiment.config.eval.bfcl
    assert chosen is not None
    return [_job(experiment, chosen, which, screen) for which in dict.fromkeys(experiment.config.eval.models)]


def _job(experiment: Experiment, chosen: Bfcl, which: Which, screen: Screen) -> Job:
    place, template = place_of(experiment, which), experiment.config.model.template
    folder = model_folder(place.model)
    target = Target(place.label, folder, place=place)
    categories = parse_categories(",".join(chosen.categories))
    asked = Asked("", "", folder, categories, threads=chosen.threads, template=template)
    inputs = {"model": model_identity(place.model), "bfcl": digest_of([chosen.model_dump(), template])}
    outputs = partial(_outputs, experiment, place.label if which == "base" else f"step{place.step}")
    work = partial(_evaluated, experiment, target, asked, chosen.runs, screen)
    return Job(f"bfcl: {which}", inputs, outputs, work, shared=which == "base")


def _outputs(experiment: Experiment, ending: str) -> list[Path]:
    """BFCL's evaluations are named after what was asked; the model comes last."""
    found = experiment.run.evals.glob(f"bfcl-*{file_name(ending)}.json*")
    return sorted(path for path in found if path.is_file())


def _evaluated(experiment: Experiment, target: Target, asked: Asked, runs: int, screen: Screen) -> str:
    # A run's own checkpoint has its place there; the base is told.
    out = None if target.place and target.place.run else experiment.run.evals
    outcome = evaluate_bfcl(target, asked, Wanted(num_passes=runs, out=out), screen.say)
    return _described(outcome)


def _described(outcome: Outcome) -> str:
    accuracy, passes = outcome.evaluation.figures.accuracy, outcome.evaluation.exam.sampling.n
    figure = "nothing judged" if accuracy is None else f"{accuracy.value:.1%} over {passes} passes"
    parts = ", ".join(dict.fromkeys(mismatch.part for mismatch in outcome.mismatches or ()))
    return figure + (f"; its prompt is not the training's ({parts})" if parts else "")
