"""The stages of a demo. Each leaves its result on the disk, and is passed over where that is there already."""

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from egpo.config import Config
from egpo.data.manifest import MANIFEST
from egpo.demos.plan import BASE, DemoFolder, Plan
from egpo.errors import RunInterruptedError
from egpo.evals.evaluate import (
    Exam,
    ExamProblems,
    StoredEvaluation,
    evaluate,
    load_exam,
    read_evaluation,
    write_evaluation,
)
from egpo.evals.intervals import default_ks
from egpo.evals.responses import Sampling
from egpo.evals.targets import LocalTarget, local_targets
from egpo.experiments.screen import Screen
from egpo.local.train import train
from egpo.local.training.opening import run_checkpoints, run_folder
from egpo.runs.live import warnings_said_by
from egpo.tasks.load import TASKS
from egpo.tasks.prepare import prepare


def prepare_data(config: Config, folder: DemoFolder) -> None:
    """The problems that the recipe would draw, as parquet: every run then reads the same file."""
    if (folder.data / MANIFEST).is_file():
        return
    settings = {key: value for key, value in config.task.settings.items() if key != "source"}
    task = TASKS[config.task.name](**settings)
    prepare(task, folder.data, train=settings["train"], test=settings["test"])


def train_run(config: Config, folder: DemoFolder, screen: Screen) -> None:
    """To its last step, from where it stands."""
    if config.steps in run_checkpoints(config).steps():
        screen.say(f"    {config.name}: trained already")
        return
    try:
        train(config, resume=run_folder(config).config.is_file())
    except RunInterruptedError as error:
        fault = error.faults[0]
        again = f"go on with the same command (it writes to {shlex.quote(str(folder.path))})"
        raise RunInterruptedError(error.exit_code - 128, fault.what, where=config.name, fix=again) from None


def exams(config: Config, plan: Plan) -> dict[str, Exam]:
    """Of the test split, by manner: as in training, and greedy."""
    longest = config.rollout.max_response_tokens
    manners = {
        "sampled": Sampling(plan.eval_n, config.rollout.temperature, max_tokens=longest),
        "greedy": Sampling(1, 0.0, max_tokens=longest),
    }
    return {
        manner: Exam(
            config.task.name,
            config.task.settings,
            num_problems=plan.eval_problems,
            sampling=sampling,
            ks=default_ks(sampling.n),
        )
        for manner, sampling in manners.items()
    }


def evaluate_models(
    configs: Mapping[str, Config], plan: Plan, screen: Screen
) -> dict[str, dict[str, StoredEvaluation]]:
    """By manner, then by model: the base, and each estimator's."""
    first = next(iter(configs.values()))
    papers = {manner: load_exam(exam) for manner, exam in exams(first, plan).items()}
    runs = [run_folder(config) for config in configs.values()]
    base, *trained = local_targets([BASE, *(str(run.path) for run in runs)])
    # The base belongs to no run: beside the first one's, the report finds its evaluation.
    candidates = {BASE: replace(base, out=runs[0].evals), **dict(zip(configs, trained, strict=True))}
    found = {name: _evaluated(candidate, papers, screen) for name, candidate in candidates.items()}
    return {manner: {name: found[name][manner] for name in found} for manner in papers}


def _evaluated(
    candidate: LocalTarget, papers: Mapping[str, ExamProblems], screen: Screen
) -> dict[str, StoredEvaluation]:
    """By manner."""
    missing = [paper for paper in papers.values() if not _file(candidate, paper).is_file()]
    if missing:
        with screen.watched(candidate.label) as view, warnings_said_by(view.say), candidate.opened() as model:
            for paper in missing:
                done = evaluate(model, paper, view.watch)
                write_evaluation(candidate.folder, candidate.file_name(paper.exam), done, candidate.origin)
    found = {manner: read_evaluation(_file(candidate, paper)) for manner, paper in papers.items()}
    told = (f"{manner} {one.value['accuracy']['value']:.1%}" for manner, one in found.items())
    screen.say(f"    {candidate.label}: {', '.join(told)}")
    return found


def _file(candidate: LocalTarget, paper: ExamProblems) -> Path:
    return candidate.folder / f"{candidate.file_name(paper.exam)}.json"
