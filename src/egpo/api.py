"""The verbs of the command line as Python functions: `from egpo import train, sft, evaluate, probe, compare, report`.

Each takes what its command takes, accepts task objects, and returns an object of `api_results`. They work in a
notebook, in a thread, and any number of times in one process; two threads take turns. Wrong input raises InputError or
ConfigError with the same text as the command line prints.
"""

import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar

from egpo.api_results import ComparisonResult, EvaluationResult, ProbeResult, RunResult
from egpo.config import Config, SftConfig, load_config
from egpo.errors import InputError
from egpo.runs.ledger import OnStep
from egpo.sections import Section
from egpo.tasks.loading import given_task
from egpo.tasks.protocol import Task

Recipe = str | os.PathLike[str] | Mapping[str, Any] | Config | None
SftRecipe = str | os.PathLike[str] | Mapping[str, Any] | SftConfig | None
Model = str | os.PathLike[str] | RunResult
Root = TypeVar("Root", bound=Section)
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
_models = threading.RLock()
"""Held while a function has a model in memory: transformers cannot load two at a time, and random seeds are global."""


def _one_at_a_time(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Decorate a function so that only one thread at a time runs a decorated function; other threads wait.

    A callback, such as `on_step`, runs in the same thread and may call decorated functions.
    """

    @wraps(function)
    def call(*args: Parameters.args, **settings: Parameters.kwargs) -> Result:
        if not _models.acquire(blocking=False):
            print(f"egpo.{function.__name__} waits until another thread of this process has finished", file=sys.stderr)
            _models.acquire()
        try:
            return function(*args, **settings)
        finally:
            _models.release()

    return call


@_one_at_a_time
def train(
    recipe: Recipe = None,
    settings: Mapping[str, Any] | None = None,
    *,
    task: Task | str | None = None,
    on_step: OnStep | None = None,
    resume: bool = False,
    resume_from: int | None = None,
    quiet: bool = False,
    **more: Any,
) -> RunResult:
    """Train by reinforcement learning, as `egpo train` does, and return the finished run.

    `recipe` is the name of a shipped recipe, a YAML file, a mapping or a Config. `settings` and further keywords
    override it: `train("countdown_tiny", {"rollout.n": 8}, name="first", steps=3)`. `task` is a task object or the name
    of a task. `on_step` is called after every step with a StepReport; it stops the run by returning True. A run that
    was stopped or killed continues with `resume=True`. `quiet` prints nothing.
    """
    from egpo import engines
    from egpo.cold_starts import require_inputs

    with _task_name(task) as name:
        config = _config(recipe, settings, {**more, **({} if name is None else {"task.name": name})}, Config)
        if config.engine == "verl":
            _refuse_on_verl(task, on_step)
        config = require_inputs(config, str(recipe))
        engines.train(config, resume=resume, resume_from=resume_from, on_step=on_step, quiet=quiet)
    return RunResult(Path(config.runs) / config.name)


@_one_at_a_time
def sft(
    recipe: SftRecipe = None,
    settings: Mapping[str, Any] | None = None,
    *,
    on_step: OnStep | None = None,
    resume: bool = False,
    resume_from: int | None = None,
    quiet: bool = False,
    **more: Any,
) -> RunResult:
    """Fine-tune on conversations, as `egpo sft` does, and return the finished run.

    >>> sft({"model": {"path": "egpo-tiny"}, "data": {"path": "chats.jsonl"}}, name="cold-start")  # doctest: +SKIP
    """
    from egpo.local.sft.session import sft as train_in_process

    config = _config(recipe, settings, more, SftConfig)
    train_in_process(config, resume=resume, resume_from=resume_from, on_step=on_step, quiet=quiet)
    return RunResult(Path(config.runs) / config.name)


@_one_at_a_time
def evaluate(
    model: Model,
    task: Task | str | None = None,
    *,
    like: Model | None = None,
    settings: Mapping[str, Any] | None = None,
    split: str = "test",
    problems: int | None = None,
    n: int = 8,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
    min_p: float = 0.0,
    greedy: bool = False,
    max_tokens: int | None = None,
    seed: int = 0,
    checkpoint: str = "latest",
    device: Literal["auto", "cpu", "cuda"] = "auto",
    out: str | os.PathLike[str] | None = None,
) -> EvaluationResult:
    """Evaluate a model on a task, as `egpo eval` does; return accuracy, pass@k and all responses.

    `model` is a model folder, a run (folder or result of `train`), or a name on the hub. If it is a run, the task, the
    variables of the chat template, the thinking tags and the maximum response length are those of the run. `like` is a
    run from which these are taken if `model` is not a run, so that a base model is evaluated like the trained model.
    `settings` are settings of the task. The other options are those of `egpo eval`. Figures and responses are also
    written to the folder `out`; default: `evals` in the run's folder, or `evals` in the working directory.
    """
    from egpo.evals.evaluate import Exam, load_exam, write_evaluation
    from egpo.evals.evaluate import evaluate as evaluate_model
    from egpo.evals.intervals import default_ks
    from egpo.evals.responses import Sampling
    from egpo.evals.targets import local_targets

    words = [_run_word(one) for one in (model, like) if one is not None]
    target = local_targets(words, checkpoint, None if out is None else Path(out), device)[0]
    recipe = target.recipe
    longest = max_tokens or (recipe.rollout.max_response_tokens if recipe else None)
    sampling = Sampling(1 if greedy else n, 0.0 if greedy else temperature, top_p, longest, seed, top_k, min_p)
    with _task_name(task) as name:
        known = recipe.task if recipe and name in (None, recipe.task.name) else None
        name = known.name if known else name
        if name is None:
            raise InputError("no task", where="evaluate", fix='name one, as in task="countdown"')
        own = known.settings if known else {}
        exam = Exam(name, {**own, **(settings or {})}, split, problems, sampling, default_ks(sampling.n))
        paper = load_exam(exam)
    with target.opened() as loaded:
        evaluation = evaluate_model(loaded, paper)
    path = write_evaluation(target.folder, target.file_name(exam), evaluation, target.origin)
    return EvaluationResult(evaluation, path)


@_one_at_a_time
def probe(
    recipe: Recipe = None,
    settings: Mapping[str, Any] | None = None,
    *,
    model: Model | None = None,
    task: Task | str | None = None,
    problems: int = 64,
    n: int = 16,
    temperature: float | None = None,
    max_tokens: int | None = None,
    seed: int | None = None,
    out: str | os.PathLike[str] | None = None,
    **more: Any,
) -> ProbeResult:
    """Sample responses to training problems without training, and return whether the model can learn from them.

    Give a recipe with overrides as for `train`, or `model` and `task`. `problems` is the number of problems, `n` the
    number of responses to each. The sampling settings are those of the training, unless an option sets another value.
    """
    from egpo.cold_starts import require_inputs
    from egpo.evals.evaluate import Exam
    from egpo.evals.intervals import default_ks
    from egpo.probes.probe import draw_exam
    from egpo.probes.probe import probe as probe_model
    from egpo.probes.store import write_probe
    from egpo.probes.subject import find_subject

    with _task_name(task) as name:
        known = None
        if recipe is not None or settings or more:
            known = require_inputs(_config(recipe, settings, more, Config), str(recipe))
        word = None if model is None else _run_word(model)
        subject = find_subject(known, model=word, task=name, out=None if out is None else Path(out))
        chosen = subject.config.task
        sampling = subject.sampling(n, temperature=temperature, max_tokens=max_tokens, seed=seed)
        given = task is not None and not isinstance(task, str)
        exam = Exam(chosen.name, {} if given else chosen.settings, "train", problems, sampling, default_ks(sampling.n))
        outcome = probe_model(subject.load(), draw_exam(exam))
    return ProbeResult(outcome, write_probe(subject.folder, outcome, subject.origin))


def compare(
    *runs: Model | EvaluationResult,
    factor: Iterable[str] | None = None,
    exam: str | None = None,
    metric: Iterable[str] | None = None,
    allow: bool = False,
    seed: int = 0,
) -> ComparisonResult:
    """Compare runs and evaluated models as `egpo compare` does: differences, intervals, p-values and verdicts.

    Each argument is a run folder, a result of `train`, or a result of `evaluate`. Runs that differ only in their seed
    are one condition. The options are those of the command.
    """
    from egpo.comparisons.comparison import ComparisonOptions, compare_runs

    paths = [one.path if isinstance(one, EvaluationResult) else Path(_run_word(one)) for one in runs]
    usual = ComparisonOptions()
    options = ComparisonOptions(
        tuple(factor or usual.factors), exam, tuple(metric or usual.metrics), allow=allow, seed=seed
    )
    return ComparisonResult(compare_runs(paths, options))


def report(*runs: Model, out: str | os.PathLike[str] | None = None) -> Path:
    """Write runs as one HTML page, as `egpo report` does, and return its path."""
    from egpo.reports import write_report

    return write_report([Path(_run_word(one)) for one in runs], None if out is None else Path(out))


def _run_word(run: Model) -> str:
    return str(run.folder if isinstance(run, RunResult) else os.fspath(run))


def _config(
    recipe: Recipe | SftRecipe, settings: Mapping[str, Any] | None, more: Mapping[str, Any], root: type[Root]
) -> Root:
    """Return the checked config of a recipe and its overrides."""
    overrides = list(_overrides({**(settings or {}), **more}, ""))
    if isinstance(recipe, Section):
        return load_config(recipe.model_dump(mode="json"), overrides, root)
    if isinstance(recipe, Mapping):
        return load_config(None, [*_overrides(recipe, ""), *overrides], root)
    return load_config(None if recipe is None else Path(recipe), overrides, root)


def _overrides(settings: Mapping[str, Any], prefix: str) -> Iterator[str]:
    """Yield `section.key=value` for each setting. Keys may be dotted, and sections may be mappings."""
    for key, value in settings.items():
        if not isinstance(key, str):
            raise InputError(f"the key {key!r} is not text", where="settings", fix='write "section.key"')
        name = f"{prefix}{key}"
        # The settings of a task are its own: a mapping there is a value.
        if isinstance(value, Mapping) and value and not f"{name}.".startswith("task.settings."):
            yield from _overrides(value, f"{name}.")
            continue
        try:
            yield f"{name}={json.dumps(_plain(value))}"
        except (TypeError, ValueError) as error:
            what = f"`{name}` is {type(value).__name__}, which a recipe cannot hold"
            raise InputError(
                what, where="settings", fix="give text, a number, true or false, a list or None"
            ) from error


def _plain(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


@contextmanager
def _task_name(task: Task | str | None) -> Iterator[str | None]:
    """Yield the name of a task. A task object is registered under that name until the `with` block ends."""
    if task is None or isinstance(task, str):
        yield task
    else:
        with given_task(task) as name:
            yield name


def _refuse_on_verl(task: Task | str | None, on_step: OnStep | None) -> None:
    fix = "leave it out, or train with engine=local"
    if on_step is not None:
        what = "the engine `verl` trains in other processes, which cannot call this function"
        raise InputError(what, where="on_step", fix=fix)
    if task is not None and not isinstance(task, str):
        what = "verl judges in other processes, which do not have this object"
        raise InputError(what, where="task", fix='give the name of its class, as in task="my_tasks:Sums"')
