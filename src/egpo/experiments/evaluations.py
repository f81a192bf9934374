"""Evaluations of an experiment's base model and trained model, on the same held-out problems.

A model answers in this process, or (`eval.serve`) through a server that is started for the evaluation.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from egpo.config import Config
from egpo.config.machine import model_folder, this_machine
from egpo.errors import InputError
from egpo.evals.evaluate import Exam, evaluate, file_name, load_exam, write_evaluation
from egpo.evals.responses import Respondent
from egpo.evals.server import ServedModel, Server
from egpo.evals.server_requests import AnswerCache
from egpo.evals.targets import LocalTarget, ModelPlace, find_model
from egpo.experiments.exams import THINKING, engine_options, exams_of, require_servable
from egpo.experiments.experiment import Experiment, Which
from egpo.experiments.screen import Screen
from egpo.experiments.stage_record import StageJob
from egpo.fingerprints import digest_of
from egpo.prepared_data import data_digest
from egpo.runs.live import warnings_printed_by
from egpo.serving.commands import Serving
from egpo.serving.served import served


def evaluation_jobs(experiment: Experiment, screen: Screen) -> list[StageJob]:
    """Return one job per model, which loads the model once and runs all exams."""
    exams = exams_of(experiment.training)
    return [_job(experiment, which, exams, screen) for which in experiment.evaluated]


def evaluation_file(experiment: Experiment, which: Which, exam: Exam) -> Path:
    """Return the path of the JSON file with the figures of a model's evaluation."""
    return _figures_file(_candidate(experiment, which), exam)


def find_evaluated(experiment: Experiment, which: Which) -> ModelPlace:
    """Return the location of a model of the experiment. InputError if its training is not finished."""
    config, run = experiment.training, experiment.run
    if which == "base":
        return find_model(experiment.config.model.path)
    if which == "cold_start":
        return replace(find_model(config.model.path), label=f"cold start of {experiment.config.model.path}")
    model = experiment.trained_model
    if not experiment.has_trained_model:
        fix = "run the stages `train` and `merge` first: leave out --only and --from"
        raise InputError(f"there is no model of step {config.steps} yet", where=str(run.path), fix=fix)
    return ModelPlace(str(model), f"{config.name} step {config.steps}", run, config.steps)


def _job(experiment: Experiment, which: Which, exams: Sequence[Exam], screen: Screen) -> StageJob:
    config, candidate = experiment.training, _candidate(experiment, which)
    prompting = [config.model.template, config.segments.tags, config.rollout.stop, config.rollout.stop_tokens]
    inputs = {
        "model": experiment.identity_of(which, candidate.place.model),
        "data": data_digest(config),
        "exams": digest_of([exams, prompting, config.eval.serve]),
    }
    if config.eval.serve and config.eval.engine_options:
        inputs["engine_options"] = digest_of(config.eval.engine_options)
    files = [_figures_file(candidate, exam) for exam in exams]
    outputs = [path.with_suffix(suffix) for path in files for suffix in (".json", ".jsonl")]

    def work() -> str:
        if which == "trained":
            experiment.require_trained_model()
        return _evaluate(candidate, config, exams, screen)

    return StageJob(f"eval: {which}", inputs, lambda: outputs, work, shared=which != "trained")


def _candidate(experiment: Experiment, which: Which) -> LocalTarget:
    """Return the model to evaluate. A model that is not of this run has its files in this run's `evals` as well."""
    config, out = experiment.training, None if which == "trained" else experiment.run.evals
    return LocalTarget(find_evaluated(experiment, which), out, config, config.model.device)


def _figures_file(candidate: LocalTarget, exam: Exam) -> Path:
    return candidate.folder / f"{candidate.file_name(exam)}.json"


def _evaluate(candidate: LocalTarget, config: Config, exams: Sequence[Exam], screen: Screen) -> str:
    papers = [load_exam(exam) for exam in exams]
    results = []
    with (
        screen.watched(candidate.label) as view,
        warnings_printed_by(view.say),
        _opened(candidate, config, view.say) as model,
    ):
        for paper in papers:
            done = replace(evaluate(model, paper, view.watch), label=candidate.label)
            write_evaluation(candidate.folder, candidate.file_name(paper.exam), done, candidate.origin)
            accuracy = done.figures.accuracy
            shown = "no response could be judged" if accuracy is None else f"{accuracy.value:.1%}"
            results.append(f"{paper.exam.task} {paper.exam.sampling.described} {shown}")
    return ", ".join(results)


@contextmanager
def _opened(candidate: LocalTarget, config: Config, say: Callable[[str], None]) -> Iterator[Respondent]:
    """Provide the model during the block: loaded here, or behind a server (`eval.serve`), whose log goes to `say`."""
    if not config.eval.serve:
        with candidate.opened() as model:
            yield model
        return
    require_servable(config)
    python = this_machine().environments.verl
    with (
        served(_serving(candidate, config), python=python, say=say) as server,
        TemporaryDirectory() as folder,
        AnswerCache.open(Path(folder) / "answers.jsonl") as cache,
    ):
        yield ServedModel(Server.at(server.url), server.model_name, cache, config.rollout.episodes)


def _serving(candidate: LocalTarget, config: Config) -> Serving:
    """Return the server's settings. Parsers are off: the reward reads thinking and tool calls from the raw text."""
    thinking = config.model.template.get(THINKING)
    return Serving(
        model_folder(candidate.place.model),
        file_name(candidate.label),
        thinking=None if thinking is None else bool(thinking),
        tool_parser="none",
        reasoning_parser="none",
        options=engine_options(config).values,
        options_from=engine_options(config).given_by,
    )
