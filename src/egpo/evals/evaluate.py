"""Evaluates one model on one task: sample responses, judge them, compute figures, store both.

    Exam -> load_exam -> ExamProblems -> evaluate -> Evaluation -> write_evaluation

`evals/<name>.json` holds the figures, `evals/<name>.jsonl` the responses that they were computed from.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from egpo.environments.records import episode_verdicts
from egpo.errors import EgpoError, InputError
from egpo.evals.figures import Figures, figures_of
from egpo.evals.intervals import require_ks
from egpo.evals.responses import (
    ProgressCallback,
    Respondent,
    Response,
    SampleRecord,
    Sampling,
    ignore_progress,
    write_samples,
)
from egpo.evals.responses import (
    StoredEvaluation as StoredEvaluation,
)
from egpo.files import write_atomically
from egpo.fingerprints import sealed, unsealed
from egpo.rewards.verdict import Verdict
from egpo.runs.provenance import installed_versions
from egpo.tasks import Problem, Task, load_task
from egpo.tasks.loading import data_source_of, sandbox_tier
from egpo.tasks.protocol import judge_texts, problems_digest


@dataclass(frozen=True)
class Exam:
    """The problems of an evaluation, how responses are sampled, and for which k pass@k is computed (`ks`).

    The problems are the first `num_problems` of a split of a task (None: all). `settings` are those of the task.
    """

    task: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    split: str = "test"
    num_problems: int | None = None
    sampling: Sampling = field(default_factory=Sampling)
    ks: tuple[int, ...] = (1,)


@dataclass(frozen=True)
class ExamProblems:
    """An exam with its task and problems loaded, shared by all models that are evaluated on it."""

    exam: Exam
    task: Task
    problems: tuple[Problem, ...]
    sandbox: str | None


@dataclass(frozen=True)
class Evaluation:
    """The result of evaluating one model: its figures, and the judged responses (`samples`).

    `num_left_out` counts the problems whose prompts are too long for the model. `data` is a digest of the problems:
    equal digests mean equal problems. `sandbox` is the kind of sandbox in which programs that the model wrote ran; None
    for tasks without programs. `ends_at` says in words what ends a response; empty for a server, which decides itself.
    """

    label: str
    exam: Exam
    figures: Figures
    samples: tuple[SampleRecord, ...]
    num_left_out: int
    data: str
    sandbox: str | None = None
    ends_at: str = ""


def evaluate(model: Respondent, loaded: ExamProblems, watch: ProgressCallback = ignore_progress) -> Evaluation:
    """Sample responses from the model, judge them, and compute the figures.

    Raise EgpoError if the server failed to give any response.
    """
    exam, problems = loaded.exam, loaded.problems
    responses = model.respond(loaded.task, problems, exam.sampling, watch)
    samples = judge_responses(loaded.task, problems, responses, data_source_of(loaded.task, exam.task))
    return Evaluation(
        label=model.label,
        exam=exam,
        figures=figures_of(samples, exam.ks, exam.sampling.seed),
        samples=samples,
        num_left_out=len(problems) - len({response.problem for response in responses}),
        data=problems_digest(problems),
        sandbox=loaded.sandbox,
        ends_at=getattr(model, "ends_at", ""),
    )


def load_exam(exam: Exam) -> ExamProblems:
    """Load the task and its problems. This is done before a model is loaded, so that mistakes are found early.

    Raise InputError if a k of pass@k is below 1 or above n, the task cannot be loaded, or the split has no problems.
    """
    require_ks(exam.ks, exam.sampling.n)
    task = load_task(exam.task, **exam.settings)
    problems = tuple(islice(task.problems(exam.split), exam.num_problems))
    if not problems:
        where = f"task {exam.task}, split `{exam.split}`"
        fix = "prepare the task's data with this split, or choose another split"
        raise InputError("the split has no problems", where=where, fix=fix)
    return ExamProblems(exam, task, problems, sandbox_tier(task, exam.settings))


def judge_responses(
    task: Task, problems: Sequence[Problem], responses: Iterable[Response], data_source: str
) -> tuple[SampleRecord, ...]:
    """Judge the responses, and return their records in the order of problems and samples.

    Responses that a server failed to give are recorded as failed. Raise EgpoError if all failed. Episodes were judged
    by their environments.
    """
    ordered = sorted(responses, key=lambda response: (response.problem, response.sample))
    answered = [response for response in ordered if response.failure is None]
    if ordered and not answered:
        what = f"the server failed to give any of {len(ordered)} responses; the first failure is: {ordered[0].failure}"
        raise EgpoError(what, where="evaluation")
    verdicts = iter(_verdicts(task, problems, answered))
    return tuple(_record(problems[r.problem], r, _failed(r) or next(verdicts), data_source) for r in ordered)


def _verdicts(task: Task, problems: Sequence[Problem], answered: Sequence[Response]) -> Sequence[Verdict]:
    episodes = [response.episode for response in answered if response.episode is not None]
    if len(episodes) == len(answered):
        return episode_verdicts(episodes)
    return judge_texts(task, [problems[r.problem] for r in answered], [r.text for r in answered])


def _failed(response: Response) -> Verdict | None:
    return None if response.failure is None else Verdict(0.0, False, response.failure, failed=True)


def _record(problem: Problem, response: Response, verdict: Verdict, data_source: str) -> SampleRecord:
    return SampleRecord(
        problem=problem.key,
        sample=response.sample,
        input=response.prompt,
        output=response.text,
        gts=problem.ground_truth,
        score=float(verdict.reward),
        acc=verdict.correct,
        reason=verdict.reason,
        failed=verdict.failed,
        num_tokens=response.num_tokens,
        finished=response.finished,
        segments=response.entropy,
        data_source=data_source,
        ability=problem.ability,
        extra_info=dict(problem.extra),
        episode=None if response.episode is None else response.episode.stored(),
    )


FORMAT = 1


@dataclass(frozen=True)
class Origin:
    """The source of an evaluated model: a model folder or a server's address; and the step if it is a checkpoint."""

    model: str
    step: int | None = None


def as_json_value(evaluation: Evaluation, origin: Origin) -> dict[str, Any]:
    """Return the evaluation as a JSON object. Estimates are `{value, low, high, num_problems}`; unknown is null."""
    exam = evaluation.exam
    return {
        "format": FORMAT,
        "label": evaluation.label,
        "model": origin.model,
        "step": origin.step,
        "task": exam.task,
        "task_settings": dict(exam.settings),
        "split": exam.split,
        "sampling": exam.sampling.as_json_value(),
        **_episode_limits(evaluation),
        **_figures_as_json(evaluation.figures),
        "num_responses": len(evaluation.samples),
        "num_failed": evaluation.figures.num_failed,
        "num_left_out": evaluation.num_left_out,
        "data": evaluation.data,
        "sandbox": evaluation.sandbox,
        "versions": installed_versions(),
    }


def _figures_as_json(figures: Figures) -> dict[str, Any]:
    value = asdict(figures)
    if not figures.endings:  # single responses
        for name in ("turns", "calls", "endings", "faults"):
            del value[name]
    return value


def _episode_limits(evaluation: Evaluation) -> dict[str, Any]:
    """Return the limits under which episodes were played; nothing for single responses."""
    limits = next((sample.episode.get("limits") for sample in evaluation.samples if sample.episode), None)
    return {} if limits is None else {"episode_limits": dict(limits)}


def write_evaluation(
    folder: Path, name: str, evaluation: Evaluation, origin: Origin, more: Mapping[str, Any] | None = None
) -> Path:
    """Write the responses (`<name>.jsonl`) and the figures (`<name>.json`), and return the path of the figures.

    The fields of `more` are added to the figures. Responses are written first, so that a file of figures never exists
    without its responses.
    """
    path = folder / f"{name}.json"
    value = as_json_value(evaluation, origin) | dict(more or {})
    text = json.dumps(sealed(value), indent=2, ensure_ascii=False, allow_nan=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_samples(path.with_suffix(".jsonl"), evaluation.samples)
        write_atomically(path, text + "\n")
    except OSError as error:
        fix = "free disk space, fix the permissions, or choose another --out"
        raise EgpoError(
            f"the evaluation cannot be written ({error.strerror or error})", where=str(path), fix=fix
        ) from error
    return path


def read_evaluation(path: Path) -> StoredEvaluation:
    """Read an evaluation and its responses.

    Raise InputError if the file is not an evaluation, or was written in a format that this version does not read.
    """
    try:
        value = unsealed(json.loads(path.read_text(encoding="utf-8")))
        value["label"]
        if value["format"] != FORMAT:
            raise InputError(
                f"format {value['format']} is not supported; this version reads format {FORMAT}", where=str(path)
            )
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        fix = "give an `evals/<name>.json` that `egpo eval` wrote"
        raise InputError(f"this file is not an evaluation ({error!r:.80})", where=str(path), fix=fix) from error
    stored = StoredEvaluation(path, value)
    stored.samples  # noqa: B018  read the responses now, so that a missing file is reported here
    return stored


def file_name(*parts: str) -> str:
    """Return a file name made of the parts, joined with `-`. Empty parts are left out.

    Characters other than letters, digits, `.`, `_` and `-` are replaced by `_`: a part may be a path or a model's name.
    """
    return re.sub(r"[^A-Za-z0-9._-]+", "_", "-".join(part for part in parts if part)).strip("._-")[:150] or "evaluation"
