"""The model before the training and after it, on the same problems."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from egpo.config import Config
from egpo.evals.evaluate import Exam, evaluate, load_exam, write_evaluation
from egpo.evals.targets import LocalTarget
from egpo.experiments.answering import answering
from egpo.experiments.exams import exams_of
from egpo.experiments.experiment import Experiment
from egpo.experiments.job import Job
from egpo.experiments.models import Which, place_of
from egpo.experiments.prepared import data_digest
from egpo.experiments.prints import digest_of, model_identity
from egpo.experiments.screen import Screen
from egpo.experiments.stages.bfcl import bfcl_jobs
from egpo.runs.live import warnings_said_by


def jobs(experiment: Experiment, screen: Screen) -> list[Job]:
    """One a model: it is loaded once, for all exams. BFCL, where it is wanted, comes after."""
    experiment.require_data()
    exams, models = exams_of(experiment.training), dict.fromkeys(experiment.config.eval.models)
    found = [_job(experiment, which, exams, screen) for which in models]
    return found + (bfcl_jobs(experiment, screen) if experiment.config.eval.bfcl else [])


def _job(experiment: Experiment, which: Which, exams: Sequence[Exam], screen: Screen) -> Job:
    config, candidate = experiment.training, _candidate(experiment, which)
    asked = [config.model.template, config.segments.tags, config.rollout.stop, config.rollout.stop_tokens]
    inputs = {
        "model": model_identity(candidate.place.model),
        "data": data_digest(config),
        "exams": digest_of([exams, asked, config.eval.serve]),
    }
    files = [_file(candidate, exam) for exam in exams]
    outputs = [path.with_suffix(suffix) for path in files for suffix in (".json", ".jsonl")]
    work = partial(_evaluated, candidate, config, exams, screen)
    return Job(f"eval: {which}", inputs, lambda: outputs, work, shared=which == "base")


def _candidate(experiment: Experiment, which: Which) -> LocalTarget:
    """The base belongs to no run: beside this one's evaluations the report finds its own."""
    config, out = experiment.training, experiment.run.evals if which == "base" else None
    return LocalTarget(place_of(experiment, which), out, config, config.model.device)


def _evaluated(candidate: LocalTarget, config: Config, exams: Sequence[Exam], screen: Screen) -> str:
    papers = [load_exam(exam) for exam in exams]
    told = []
    with (
        screen.watched(candidate.label) as view,
        warnings_said_by(view.say),
        answering(candidate, config, view.say) as model,
    ):
        for paper in papers:
            done = replace(evaluate(model, paper, view.watch), label=candidate.label)
            write_evaluation(candidate.folder, candidate.file_name(paper.exam), done, candidate.origin)
            accuracy = done.figures.accuracy
            shown = "nothing judged" if accuracy is None else f"{accuracy.value:.1%}"
            told.append(f"{paper.exam.task} {paper.exam.sampling.described} {shown}")
    return ", ".join(told)


def _file(candidate: LocalTarget, exam: Exam) -> Path:
    return candidate.folder / f"{candidate.file_name(exam)}.json"
