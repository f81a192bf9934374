"""`egpo eval`: evaluate models on a task, and compare them."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from egpo.config import Config
    from egpo.evals.evaluate import Evaluation, Exam, ExamProblems, Origin
    from egpo.evals.server import Server
    from egpo.evals.targets import EvaluationTarget

MODEL_HELP = (
    "Model folder, run folder, checkpoint folder, or model name on the hub. With --url: name of a model on the server."
)
TASK_HELP = "Task to evaluate on: a name such as countdown, or module:Class. Default: the task of the first run."
SET_HELP = "Setting of the task, as in max_numbers=3. May be repeated."
OUT_HELP = (
    "Folder for figures and responses. Default: `evals` in the run folder; for other models, that of the first run "
    "among the models, or `evals` in the current folder."
)
TURNS_HELP = (
    "Longest episode of a task with an environment, in turns of the assistant. Default: that of the run's recipe, or 8."
)
TURN_TOKENS_HELP = (
    "Longest turn of an episode, in tokens; --max-tokens limits the whole episode. Default: that of the run's recipe, "
    "or no limit."
)
K_HELP = "Values of k for pass@k, as in 1,2,4. Default: the powers of two up to n."
URL_HELP = (
    "Evaluate models of this OpenAI-compatible server, as in http://localhost:8000/v1. Answers are cached on disk."
)
KEY_HELP = "Name of the environment variable that holds the server's API key. Default: no key."


def eval_models(
    models: Annotated[list[str] | None, typer.Argument(metavar="MODEL", help=MODEL_HELP, show_default=False)] = None,
    task: Annotated[str | None, typer.Option(help=TASK_HELP, show_default=False)] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help=SET_HELP)] = None,
    split: Annotated[str, typer.Option(help="Split of the task's data: test or train.")] = "test",
    problems: Annotated[
        int | None, typer.Option(min=1, help="Evaluate only the first N problems. Default: all.")
    ] = None,
    n: Annotated[int, typer.Option("--n", min=1, help="Responses sampled per problem.")] = 8,
    temperature: Annotated[float, typer.Option(min=0, help="Sampling temperature.")] = 1.0,
    top_p: Annotated[
        float, typer.Option(help="Sample from the fewest tokens whose probabilities add up to at least P. 1: all.")
    ] = 1.0,
    top_k: Annotated[int, typer.Option(min=0, help="Sample from the K most likely tokens. 0: all.")] = 0,
    min_p: Annotated[
        float,
        typer.Option(min=0, max=1, help="Drop tokens less likely than this fraction of the most likely one. 0: none."),
    ] = 0.0,
    greedy: Annotated[
        bool, typer.Option("--greedy", help="Greedy decoding: the same as --temperature 0 --n 1.")
    ] = False,
    k: Annotated[str | None, typer.Option("--k", help=K_HELP, show_default=False)] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Longest response, in tokens. Default: that of the run's recipe, or 1024.")
    ] = None,
    max_turns: Annotated[int | None, typer.Option(min=1, help=TURNS_HELP, show_default=False)] = None,
    max_turn_tokens: Annotated[int | None, typer.Option(min=1, help=TURN_TOKENS_HELP, show_default=False)] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sampling and of the bootstrap.")] = 0,
    checkpoint: Annotated[str, typer.Option(help="Checkpoint of a run: latest, best, or a step number.")] = "latest",
    device: Annotated[
        Literal["auto", "cpu", "cuda"],
        typer.Option(help="Device for models that run in this process. auto: a GPU if there is one."),
    ] = "auto",
    url: Annotated[str | None, typer.Option("--url", help=URL_HELP, show_default=False)] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="With --url: concurrent requests.")] = 16,
    timeout: Annotated[float, typer.Option(min=1, help="With --url: seconds until a request fails.")] = 300,
    api_key_env: Annotated[str | None, typer.Option(metavar="NAME", help=KEY_HELP, show_default=False)] = None,
    out: Annotated[Path | None, typer.Option(help=OUT_HELP, show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Evaluate models on a task: print accuracy, pass@k, score, entropy and length with 95 % intervals, and reasons.

    If several models are given, each is compared with the first one, paired by problem. For the Berkeley
    Function-Calling Leaderboard see: egpo eval bfcl --help

    Example: [cyan]egpo eval egpo-tiny runs/first --task countdown --n 8 --problems 128[/]
    """
    from egpo.evals.evaluate import load_exam
    from egpo.evals.responses import Sampling
    from egpo.evals.targets import local_targets, served_targets

    found: Sequence[EvaluationTarget]
    recipe = None
    if url is None:
        local = local_targets(_required(models), checkpoint, out, device)
        found, recipe = local, local[0].recipe
    else:
        found = served_targets(_server(url, concurrency, timeout, api_key_env), models or (), out)
    if max_tokens is None and recipe is not None:
        max_tokens = recipe.rollout.max_response_tokens
    sampling = Sampling(
        1 if greedy else n,
        0.0 if greedy else temperature,
        top_p,
        max_tokens,
        seed,
        top_k=top_k,
        min_p=min_p,
        max_turns=max_turns,
        max_turn_tokens=max_turn_tokens,
    )
    exam = _exam(
        task, settings or (), recipe, split=split, num_problems=problems, sampling=sampling, ks=_ks(k, sampling.n)
    )
    paper = load_exam(exam)  # a mistake in the task is found before a model is loaded
    _report([_examined(candidate, paper) for candidate in found], as_json)


def _required(models: list[str] | None) -> list[str]:
    from egpo.errors import InputError

    if not models:
        fix = "name a model folder or a run, or give a server with --url"
        raise InputError("no model is given", where="egpo eval", fix=fix)
    return models


def _server(url: str, concurrency: int, timeout: float, api_key_env: str | None) -> "Server":
    from egpo.evals.server import Server
    from egpo.evals.server_requests import RetryPolicy

    return Server.at(url, api_key=key_in(api_key_env), concurrency=concurrency, retries=RetryPolicy(timeout_s=timeout))


def key_in(variable: str | None) -> str | None:
    """Return the API key from the environment variable that `--api-key-env` names; None without that option."""
    from egpo.errors import InputError

    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key:
        fix = f"set it with `export {variable}=...`, or correct its name"
        raise InputError(f"the environment variable {variable} is not set", where="--api-key-env", fix=fix)
    if not (key.isascii() and key.isprintable()):  # the error of an invalid HTTP header would print the key
        raise InputError(
            f"the value of the environment variable {variable} is not a valid API key",
            where="--api-key-env",
            fix="set the variable to one line of ASCII text",
        )
    return key


def _ks(text: str | None, n: int) -> tuple[int, ...]:
    from egpo.errors import InputError
    from egpo.evals.intervals import default_ks, require_ks

    if text is None:
        return default_ks(n)
    try:
        return require_ks([int(word) for word in text.split(",")], n)
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        what = f"`{text}` is not a list of whole numbers"
        raise InputError(what, where="--k", fix="separate whole numbers by commas, as in 1,2,4") from error


def _exam(task: str | None, words: "Sequence[str]", recipe: "Config | None", **others: Any) -> "Exam":
    """Return the exam (task, problems and sampling settings) for the command's options.

    If the task is that of the run, the settings in the run's recipe are used, and `--set` overrides single ones.
    """
    from egpo.errors import InputError
    from egpo.evals.evaluate import Exam

    settings = parsed_settings(words)
    if recipe is not None and task in (None, recipe.task.name):
        return Exam(recipe.task.name, {**recipe.task.settings, **settings}, **others)
    if task is None:
        raise InputError("no task is given", where="egpo eval", fix="name a task, as in --task countdown")
    return Exam(task, settings, **others)


def parsed_settings(words: "Sequence[str]") -> dict[str, Any]:
    from egpo.config.yaml_text import parse_yaml
    from egpo.errors import InputError

    settings = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise InputError(f"`{word}` is not a setting", where="--set", fix="write KEY=VALUE, as in max_numbers=3")
        settings[key] = parse_yaml(value, f"--set {word}").value
    return settings


@dataclass(frozen=True)
class _Examined:
    """An evaluation, the source of the evaluated model, and the file to which the evaluation was written."""

    evaluation: "Evaluation"
    origin: "Origin"
    path: Path


def _examined(candidate: "EvaluationTarget", paper: "ExamProblems") -> _Examined:
    from egpo.cli.progress import shown_progress
    from egpo.evals.evaluate import evaluate, write_evaluation
    from egpo.runs.live import warnings_printed_by

    with shown_progress(candidate.label) as view, warnings_printed_by(view.say), candidate.opened() as model:
        evaluation = evaluate(model, paper, view.watch)
    path = write_evaluation(candidate.folder, candidate.file_name(paper.exam), evaluation, candidate.origin)
    return _Examined(evaluation, candidate.origin, path)


def _report(examined: list[_Examined], as_json: bool) -> None:
    from egpo.cli.eval_tables import print_comparison, print_evaluation
    from egpo.evals.evaluate import as_json_value
    from egpo.evals.paired import compare

    base = examined[0].evaluation
    comparisons = [compare(base, one.evaluation, base.exam.ks, base.exam.sampling.seed) for one in examined[1:]]
    if as_json:
        told = [as_json_value(one.evaluation, one.origin) | {"file": str(one.path)} for one in examined]
        value = {"evaluations": told, "comparisons": [asdict(comparison) for comparison in comparisons]}
        typer.echo(json.dumps(value, indent=2, default=str))
        return
    for one in examined:
        print_evaluation(one.evaluation, one.path)
    for comparison in comparisons:
        print_comparison(comparison)
