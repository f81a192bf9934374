"""The verbs of the command line as Python functions: `from egpo import train, sft, evaluate, probe, compare, report`.

Each takes what its command takes, accepts task objects, and returns an object of `api_results`. They work in a
notebook, in a thread, and any number of times in one process; two threads take turns. Wrong input raises InputError or
ConfigError with the same text as the command line prints.
"""

import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar

from egpo.api_inputs import (
    Model,
    Recipe,
    SftRecipe,
    as_words,
    config_of,
    recipe_word,
    refuse_on_verl,
    refuse_settings_of_object,
    require_callable,
    require_counts,
    run_word,
    task_name,
    task_overrides,
)
from egpo.api_results import ComparisonResult, EvaluationResult, ProbeResult, RunResult
from egpo.config import Config, SftConfig
from egpo.errors import InputError
from egpo.runs.ledger import OnStep
from egpo.tasks.protocol import Task

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
# Of tqdm, in a notebook without ipywidgets, when transformers is imported: no bars are shown anyway.
warnings.filterwarnings("ignore", message="IProgress not found")

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
    was stopped or killed continues with `resume=True`, or with `resume_from=10` from the checkpoint of step 10. `quiet`
    prints nothing.

    >>> run = train("recipe.yaml", {"rollout.n": 4}, task="countdown", steps=3, name="first")  # doctest: +SKIP
    >>> run.metrics[-1]["critic/score/mean"]  # doctest: +SKIP
    """
    from egpo import engines
    from egpo.cold_starts import require_inputs

    require_callable(on_step)
    with task_name(task) as name:
        config = config_of(recipe, settings, {**more, **task_overrides(task, name)}, Config)
        if config.engine == "verl":
            refuse_on_verl(task, on_step)
        config = require_inputs(config, recipe_word(recipe))
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
    """Fine-tune on conversations, as `egpo sft` does, and return the finished run. The options are those of `train`.

    >>> sft({"model": {"path": "egpo-tiny"}, "data": {"path": "chats.jsonl"}}, name="cold-start")  # doctest: +SKIP
    """
    from egpo.local.sft.session import sft as train_in_process

    require_callable(on_step)
    config = config_of(recipe, settings, more, SftConfig)
    train_in_process(config, resume=resume, resume_from=resume_from, on_step=on_step, quiet=quiet)
    return RunResult(Path(config.runs) / config.name)


@_one_at_a_time
def evaluate(
    model: Model,
    task: Task | str | None = None,
    *,
    like: Model | None = None,
    task_settings: Mapping[str, Any] | None = None,
    split: str = "test",
    problems: int | None = None,
    n: int = 8,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
    min_p: float = 0.0,
    greedy: bool = False,
    max_tokens: int | None = None,
    max_turns: int | None = None,
    max_turn_tokens: int | None = None,
    ks: Iterable[int] | None = None,
    seed: int = 0,
    checkpoint: str | int = "latest",
    device: Literal["auto", "cpu", "cuda"] = "auto",
    out: str | os.PathLike[str] | None = None,
) -> EvaluationResult:
    """Evaluate a model on a task, as `egpo eval` does; return accuracy, pass@k and all responses.

    `model` is a model folder, a run (folder or result of `train`), or a name on the hub. If it is a run, the task, the
    variables of the chat template, the thinking tags and the maximum response length are those of the run. `like` is a
    run from which these are taken if `model` is not a run, so that a base model is evaluated like the trained model.
    `task_settings` are the arguments of a task that is given by its name. `n` responses are sampled to each of the
    first `problems` problems; `greedy` takes the likeliest tokens instead. `max_turns` and `max_turn_tokens` limit the
    episodes of a task with an environment; `max_tokens` is then the limit of a whole episode. `ks` are the k of pass@k.
    `checkpoint` of a run is "latest", "best" or a step. Figures and responses are also written to `evals` of the run, or of the run
    `like`, to `evals` here without a run, or to `out`. `egpo eval --url` evaluates a model on a server.

    >>> base = evaluate("egpo-tiny", "countdown", problems=64, n=4, max_tokens=128)  # doctest: +SKIP
    >>> base.accuracy.value, base.accuracy.low, base.accuracy.high  # doctest: +SKIP
    """
    from egpo.evals.evaluate import Exam, load_exam, write_evaluation
    from egpo.evals.evaluate import evaluate as evaluate_model
    from egpo.evals.intervals import default_ks, require_ks
    from egpo.evals.responses import Sampling
    from egpo.evals.targets import local_targets

    words = [run_word(model, "evaluate"), *([] if like is None else [run_word(like, "evaluate")])]
    counts = {"problems": problems, "n": n, "max_tokens": max_tokens, "max_turns": max_turns}
    require_counts("evaluate", **counts, max_turn_tokens=max_turn_tokens)
    target = local_targets(words, str(checkpoint), None if out is None else Path(out), device)[0]
    recipe = target.recipe
    longest = max_tokens or (recipe.rollout.max_response_tokens if recipe else None)
    how_many, how_hot = (1, 0.0) if greedy else (n, temperature)
    limits = (max_turns, max_turn_tokens)
    sampling = Sampling(how_many, how_hot, top_p, longest, seed, top_k, min_p, *limits)
    with task_name(task) as name:
        known = recipe.task if recipe and name in (None, recipe.task.name) else None
        name = known.name if known else name
        if name is None:
            raise InputError("no task", where="evaluate", fix='name one, as in task="countdown"')
        refuse_settings_of_object(task, task_settings)
        own = known.settings if known else {}
        chosen_ks = default_ks(sampling.n) if ks is None else require_ks(list(ks), sampling.n)
        exam = Exam(name, {**own, **(task_settings or {})}, split, problems, sampling, chosen_ks)
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
    task_settings: Mapping[str, Any] | None = None,
    device: Literal["auto", "cpu", "cuda"] | None = None,
    out: str | os.PathLike[str] | None = None,
    **more: Any,
) -> ProbeResult:
    """Sample responses to training problems without training, and return whether the model can learn from them.

    Give a recipe with overrides as for `train`, or `model` and `task`. `problems` is the number of problems, `n` the
    number of responses to each. The sampling settings are those of the training, unless an option sets another value.
    `task_settings` are the arguments of a task that is given by its name. `egpo probe --keep` also writes the suitable
    problems as data.

    >>> print(probe(model="egpo-tiny", task="countdown", problems=32, n=8, max_tokens=128))  # doctest: +SKIP
    """
    from egpo.cold_starts import require_inputs
    from egpo.evals.evaluate import Exam
    from egpo.evals.intervals import default_ks
    from egpo.probes.probe import draw_exam
    from egpo.probes.probe import probe as probe_model
    from egpo.probes.store import write_probe
    from egpo.probes.subject import find_subject

    with task_name(task) as name:
        known = None
        if recipe is not None or settings or more:
            known = require_inputs(config_of(recipe, settings, more, Config), recipe_word(recipe))
        refuse_settings_of_object(task, task_settings)
        require_counts("probe", problems=problems, n=n, max_tokens=max_tokens)
        subject = find_subject(
            known,
            model=None if model is None else run_word(model, "probe"),
            task=name,
            settings=task_settings,
            device=device,
            out=None if out is None else Path(out),
        )
        chosen = subject.config.task
        sampling = subject.sampling(n, temperature=temperature, max_tokens=max_tokens, seed=seed)
        given = task is not None and not isinstance(task, str)
        exam = Exam(chosen.name, {} if given else chosen.settings, "train", problems, sampling, default_ks(sampling.n))
        outcome = probe_model(subject.load(), draw_exam(exam))
    return ProbeResult(outcome, write_probe(subject.folder, outcome, subject.origin))


def compare(
    *runs: Model | EvaluationResult,
    factor: str | Iterable[str] | None = None,
    exam: str | None = None,
    metric: str | Iterable[str] | None = None,
    allow: bool = False,
    seed: int = 0,
    out: str | os.PathLike[str] | None = None,
) -> ComparisonResult:
    """Compare runs and evaluated models as `egpo compare` does: differences, intervals, p-values and verdicts.

    Each argument is a run folder, a result of `train`, or a result of `evaluate`. Runs that differ only in their seed
    are one condition. `factor` names the settings in which conditions may differ (default: `algorithm`), `allow`
    compares whatever differs, `exam` is one of several evaluations, and `metric` is accuracy, score or pass@K, or a
    list of them. `out` is a folder for compare.json, which `report` shows if it is the folder that holds the runs.

    >>> compare("runs/grpo-0", "runs/grpo-1", "runs/egpo-0", "runs/egpo-1").verdicts  # doctest: +SKIP
    """
    from egpo.comparisons.comparison import ComparisonOptions, compare_runs
    from egpo.comparisons.outputs import write_json

    paths = [one.path if isinstance(one, EvaluationResult) else Path(run_word(one, "compare")) for one in runs]
    usual = ComparisonOptions()
    options = ComparisonOptions(
        as_words(factor) or usual.factors, exam, as_words(metric) or usual.metrics, allow=allow, seed=seed
    )
    found = compare_runs(paths, options)
    if out is not None:
        write_json(found, Path(out))
    return ComparisonResult(found)


def report(*runs: Model, out: str | os.PathLike[str] | None = None) -> Path:
    """Write runs as one HTML page, as `egpo report` does, and return its path.

    >>> report("runs/grpo", "runs/egpo", out="comparison.html")  # doctest: +SKIP
    """
    from egpo.reports import write_report

    if not runs:
        raise InputError("no run is given", where="report", fix='give run folders, as in report("runs/first")')
    return write_report([Path(run_word(one, "report")) for one in runs], None if out is None else Path(out))
