"""What `egpo run` would do, as text: nothing is loaded, nothing is asked of the network, nothing is written."""

from pathlib import Path
from textwrap import fill

from egpo.config import Config
from egpo.config.machine import model_folder
from egpo.errors import InputError
from egpo.experiments.exams import exams_of
from egpo.experiments.experiment import Experiment
from egpo.experiments.prepared import require_source
from egpo.experiments.selection import Selection
from egpo.verl.launch.dry_run import dry_run


def planned(experiment: Experiment, selection: Selection) -> str:
    """A line a stage, in the order in which they come."""
    described = {
        "prepare": _data(experiment),
        "probe": f"{experiment.config.probe.problems} training problems, {experiment.config.probe.n} responses each",
        "train": _training(experiment.config),
        "merge": _merging(experiment),
        "eval": _evaluations(experiment.training),
        "report": str(experiment.run.report),
    }
    lines = [f"{experiment.name}: {experiment.recipe} -> {experiment.run.path}", _line("model", _model(experiment))]
    lines += [_line(stage, described[stage]) for stage in selection.stages]
    if experiment.config.engine == "verl" and "train" in selection.stages:
        lines += ["", dry_run(experiment.training, resume=experiment.run.config.is_file())]
    return "\n".join(lines)


def _line(name: str, text: str) -> str:
    """Broken for narrow screens, between words."""
    start, indent = f"  {name:<8} ", " " * 11
    return fill(
        text, 80, initial_indent=start, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _model(experiment: Experiment) -> str:
    name = experiment.config.model.path
    folder = Path(model_folder(name)).expanduser()
    return f"{name} ({folder if folder.is_dir() else 'not on this machine: asked of the hub'})"


def _data(experiment: Experiment) -> str:
    plan = experiment.data
    if plan is None:
        return f"nothing: {experiment.config.task.settings.get('source', 'the task has its own data')}"
    origin = "drawn by the task" if plan.source is None else f"from {plan.source}"
    state = "there already" if plan.folder.is_dir() else "to be made"
    try:
        require_source(experiment.config)
    except InputError as error:
        return str(error)
    return f"{plan.folder}, {origin} ({state})"


def _training(config: Config) -> str:
    rollout = config.rollout
    batch = f"{rollout.prompts} problems x {rollout.n} responses of up to {rollout.max_response_tokens:,} tokens"
    settings = f"{config.algorithm.estimator}, lr {config.update.lr:g}, KL {config.update.kl:g}"
    return f"{config.steps} steps of {batch}; {settings}; engine {config.engine}"


def _merging(experiment: Experiment) -> str:
    return "nothing: checkpoints hold whole models" if experiment.config.engine == "local" else str(experiment.merged)


def _evaluations(config: Config) -> str:
    count = f"{config.eval.problems} problems" if config.eval.problems else "the whole test split"
    exams = ", ".join(f"{exam.task} {exam.sampling.described}" for exam in exams_of(config))
    bfcl = (
        f"; BFCL {', '.join(config.eval.bfcl.categories)}, {config.eval.bfcl.runs} passes" if config.eval.bfcl else ""
    )
    return f"{' and '.join(config.eval.models)} on {count}: {exams}{bfcl}"
