"""The jobs of the stages prepare, probe, train, merge, eval and report: one function per stage returns its jobs."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from egpo.cold_starts import make_cold_start, require_gold_answer
from egpo.config import Config
from egpo.config.machine import model_folder, model_identity, require_model_place
from egpo.engines import require_engine, train
from egpo.evals.evaluate import Exam
from egpo.evals.intervals import default_ks
from egpo.experiments.bfcl import bfcl_jobs
from egpo.experiments.evaluations import evaluation_jobs
from egpo.experiments.exams import require_evaluable
from egpo.experiments.experiment import Experiment
from egpo.experiments.screen import Screen
from egpo.experiments.stage_record import StageJob
from egpo.fingerprints import digest_of, files_in, fingerprint, folder_digest
from egpo.prepared_data import FILES, data_digest, make_data, require_source
from egpo.probes.probe import draw_exam, probe
from egpo.probes.store import write_probe
from egpo.probes.subject import find_subject, training_sampling
from egpo.reports import write_report
from egpo.runs.differences import FREE
from egpo.runs.folder import PROBE
from egpo.runs.live import warnings_printed_by
from egpo.runs.metric_table import ACCURACY, REWARD
from egpo.runs.metrics import read_metrics
from egpo.runs.stored import read_json_object


def require_data_source(experiment: Experiment) -> None:
    """Raise InputError if the source of the data is not on this machine."""
    require_source(experiment.config)


def prepare_jobs(experiment: Experiment, screen: Screen) -> list[StageJob]:
    """Return the job that writes the data; none if the recipe names prepared data or a task outside the package."""
    plan = experiment.data
    if plan is None:
        return []
    require_source(experiment.config)
    outputs = [plan.folder / name for name in FILES]
    return [StageJob("prepare", plan.inputs, lambda: outputs, partial(make_data, plan), shared=True)]


def require_model(experiment: Experiment) -> None:
    """Raise InputError if the base model is not there or cannot be read. A GGUF file is converted for this."""
    path = experiment.config.model.path
    require_model_place(path, f"model {path}")


def require_cold_start(experiment: Experiment) -> None:
    """Raise InputError if the model or the task is not fit for the recipe's cold start."""
    if experiment.cold_start is not None and not experiment.cold_start.model.is_dir():
        require_model(experiment)
        require_gold_answer(experiment.cold_start)


def cold_start_jobs(experiment: Experiment, screen: Screen) -> list[StageJob]:
    """Return the job that trains on gold answers before RL; none if the recipe has no cold start."""
    plan = experiment.cold_start
    if plan is None:
        return []
    work = partial(make_cold_start, plan)
    return [StageJob("cold_start", plan.inputs, lambda: files_in(plan.model), work, shared=True)]


def probe_jobs(experiment: Experiment, screen: Screen) -> list[StageJob]:
    """Return the job that probes the base model on training problems. Runs with the same inputs share its result."""
    config, path = experiment.training, experiment.run.evals / PROBE
    inputs = {
        "model": digest_of([model_identity(config.model.path), config.model.template]),
        "data": data_digest(config),
        "task": digest_of(config.task.model_dump(mode="json")),
        "sampling": digest_of([training_sampling(config, config.probe.n), config.segments.tags, config.rollout.stop]),
        "probe": digest_of(config.probe.model_dump()),
    }
    outputs = [path, path.with_suffix(".jsonl"), path.with_suffix(".svg")]
    return [StageJob("probe", inputs, lambda: outputs, partial(_probe, experiment, screen), shared=True)]


def _probe(experiment: Experiment, screen: Screen) -> str:
    config = experiment.training
    sampling = training_sampling(config, config.probe.n)
    exam = Exam(
        config.task.name, config.task.settings, "train", config.probe.problems, sampling, default_ks(sampling.n)
    )
    subject, paper = find_subject(config, out=experiment.run.evals), draw_exam(exam)
    with screen.watched("probe") as view, warnings_printed_by(view.say):
        path = write_probe(subject.folder, probe(subject.load(), paper, view.watch), subject.origin)
    return _probe_result(read_json_object(path))


def _probe_result(found: Mapping[str, Any]) -> str:
    accuracy, variance = found["evaluation"]["accuracy"], found["reward_variance"]
    figures = f"accuracy {accuracy['value']:.1%}" if accuracy else "no response could be judged"
    figures += f", reward variance within a problem {variance['value']:.2f}" if variance else ""
    faults = [f"{one['figure']}: {one['advice']}" for one in found["findings"] if one["status"] == "bad"]
    return f"{figures}; {'; '.join(faults) or 'there is something to learn'}"


def require_trainable(experiment: Experiment) -> None:
    """Raise InputError if training steps are left to do, and the model or the recipe's engine cannot be used here."""
    if not experiment.has_trained_model and not experiment.run.checkpoint_of(experiment.config.steps).is_dir():
        require_model(experiment)
        require_engine(experiment.training)


def train_jobs(experiment: Experiment, screen: Screen) -> list[StageJob]:
    """Return the job that trains the run, or resumes its training. Its inputs are weights, data and settings."""
    config = experiment.training
    inputs = {
        "weights": model_identity(config.model.path),
        "data": data_digest(config),
        **{key: digest_of(value) for key, value in _settings_that_matter(config).items()},
    }
    return [StageJob("train", inputs, partial(_training_outputs, experiment), partial(_train, experiment, screen))]


def _settings_that_matter(config: Config) -> dict[str, Any]:
    """Return the settings without the sections and keys that a run may change (`FREE`), such as `verl.python`."""
    settings = config.model_dump(mode="json", exclude=set(FREE) if config.engine == "verl" else {*FREE, "verl"})
    for section, _, key in (name.partition(".") for name in FREE):
        settings.get(section, {}).pop(key, None)
    return settings


def _training_outputs(experiment: Experiment) -> list[Path]:
    """Return the files of a finished training: metrics, and the last checkpoint (a whole model, or verl's shards)."""
    actor = experiment.run.checkpoint_of(experiment.config.steps) / "actor"
    return [experiment.run.metrics, *files_in(actor / "huggingface"), *files_in(actor)]


def _train(experiment: Experiment, screen: Screen) -> str:
    resume, quiet = experiment.run.config.is_file(), screen.on_step is not None and not screen.shows_steps
    train(experiment.training, resume=resume, on_step=screen.on_step, quiet=quiet)
    shown = {"score": REWARD, "accuracy": ACCURACY}
    lines = [line for line in read_metrics(experiment.run.metrics) if REWARD in line]
    figures = [f"{name} {lines[0][key]:.2f} -> {lines[-1][key]:.2f}" for name, key in shown.items() if key in lines[-1]]
    return f"at step {experiment.config.steps}: {', '.join(figures)}"


def merge_jobs(experiment: Experiment, screen: Screen) -> list[StageJob]:
    """Return the job that merges verl's shards; none for the embedded engine, which saves whole models."""
    if experiment.config.engine == "local":
        return []
    actor = experiment.run.checkpoint_of(experiment.config.steps) / "actor"
    removed = experiment.removed
    inputs = {"shards": folder_digest(actor) if removed is None else removed.shards}
    return [StageJob("merge", inputs, lambda: files_in(experiment.merged), partial(_merge, experiment, actor))]


def _merge(experiment: Experiment, actor: Path) -> str:
    from egpo.merges.merge import merge

    merged = merge(actor, experiment.merged, base=model_folder(experiment.config.model.path), force=True)
    shards = f"{merged.world_size} shard{'s' if merged.world_size > 1 else ''}"
    return f"{merged.out}: {merged.num_parameters:,} parameters from {shards}, {merged.dtype}"


def require_evaluated(experiment: Experiment) -> None:
    """Raise InputError if the models could not be served for their evaluation, before hours of training."""
    require_evaluable(experiment.training)


def eval_jobs(experiment: Experiment, screen: Screen) -> list[StageJob]:
    """Return the evaluation jobs: one per model, and one more per model for BFCL if the recipe has `eval.bfcl`."""
    return [*evaluation_jobs(experiment, screen), *bfcl_jobs(experiment, screen)]


def report_jobs(experiment: Experiment, screen: Screen) -> list[StageJob]:
    """Return the job that writes the run's report."""
    run = experiment.run
    inputs = {
        "config": str(fingerprint(run.config)),
        "metrics": str(fingerprint(run.metrics)),
        "health": str(fingerprint(run.health)),
        "evaluations": folder_digest(run.evals),
    }
    if run.removed.is_file():
        inputs["removed"] = str(fingerprint(run.removed))
    return [StageJob("report", inputs, lambda: [run.report], lambda: str(write_report([run.path], run.report)))]
