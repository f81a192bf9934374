"""Compares two versions of egpo-tiny on problems that neither has seen, paired by problem:

    python -m examples.egpo_tiny.compare FIRST data/egpo-tiny-second/model --out data/egpo-tiny-comparison

Each exam has the settings of a recipe. It has the problems of the lesson's unseen splits, and then problems that are in
the corpus of neither stage. An accuracy is "held" if the 95 % interval of the difference lies above minus `--margin`.
Evaluations are stored in `--out`, and an interrupted comparison continues there. It runs on a GPU, or on a CPU with
smaller `--n` and `--problems`.
"""

import argparse
import json
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from egpo.config import Config, load_config
from egpo.config.schema import Model
from egpo.evals.evaluate import Exam, ExamProblems, Origin, evaluate, file_name, read_evaluation, write_evaluation
from egpo.evals.local_model import ROWS_AT_ONCE, LocalModel
from egpo.evals.paired import ACCURACY, Judged, PairedDifference, compare
from egpo.evals.responses import Sampling
from egpo.files import write_atomically
from egpo.local.models.loading import load_policy
from egpo.rewards.sandbox import sandbox_status
from egpo.tasks import Problem, load_task
from egpo.tasks.loading import sandbox_tier
from egpo.tasks.sourced import SourcedTask
from examples.egpo_tiny.corpus import SHARD, examples
from examples.egpo_tiny.lessons import LESSONS, Lesson
from examples.egpo_tiny.make import CONVERSATIONS, SEEDS


@dataclass(frozen=True)
class Subject:
    """An exam: the lesson that it tests, and the recipe whose reward, limits and template it has."""

    lesson: str
    recipe: str

    @property
    def config(self) -> Config:
        return load_config(self.recipe)


SUBJECTS = {
    "countdown": Subject("countdown", "countdown_tiny"),
    "gsm8k": Subject("gsm8k", "gsm8k_tiny"),
    "tool_calls_think": Subject("function_calling", "tool_calls_tiny_egpo"),
    "tool_calls_plain": Subject("function_calling", "tool_calls_tiny_grpo"),
    "code": Subject("code", "mixed_tiny"),
    "toolbox": Subject("toolbox", "toolbox_tiny"),
    "toolbox_two": Subject("toolbox_two", "toolbox_tiny"),
}
"""The exams. `code` has only the 48 problems of its test split: the corpora contain all others."""
MODES = ("sampled", "greedy")
_LESSONS = {lesson.name: lesson for lesson in LESSONS}


def held_out(lesson: Lesson, task: SourcedTask, count: int) -> list[Problem]:
    """Return problems of the lesson that are in no corpus: at most `count`, and fewer if there are not so many."""
    unseen = chain.from_iterable(lesson.load(**_sizes(lesson, count)).problems(split) for split in lesson.unseen[::-1])
    found = {problem.key: problem for problem in islice(unseen, count)}
    if len(found) < count and lesson.task == "function_calling":
        seen = corpus_keys(lesson.name)
        fresh = (problem for problem in _drawn(task) if problem.key not in seen)
        while len(found) < count:
            problem = next(fresh)
            found.setdefault(problem.key, problem)
    return list(found.values())


def _sizes(lesson: Lesson, count: int) -> dict[str, int]:
    # A toolbox problem belongs to the test split by its key, so that its test split may have any size.
    return {"test": count} if lesson.task == "toolbox" else {}


def _drawn(task: SourcedTask) -> Iterator[Problem]:
    rng = random.Random("egpo-tiny comparison")
    while True:
        yield task.draw(rng)


def corpus_keys(lesson: str) -> set[str]:
    """Return the keys of all problems of a lesson in the corpora of both stages, by drawing them again."""
    sizes = [
        (min(SHARD, CONVERSATIONS[stage] - first), SEEDS[stage], first // SHARD, stage, lesson)
        for stage in CONVERSATIONS
        for first in range(0, CONVERSATIONS[stage], SHARD)
    ]
    with ProcessPoolExecutor() as pool:
        return set().union(*pool.map(_shard_keys, sizes))


def _shard_keys(shard: tuple[int, int, int, str, str]) -> set[str]:
    count, seed, index, stage, lesson = shard
    return {one.problem.key for one in examples(count, seed, index, stage) if one.lesson.name == lesson}


@dataclass(frozen=True)
class Examiner:
    """How models are examined: on how many problems, with how many samples, on which device, and where results go."""

    out: Path
    problems: int
    n: int
    device: str

    def difference(self, subject: str, mode: str, models: Sequence[str]) -> PairedDifference:
        """Return the difference of accuracy between the first and the second model."""
        papers: list[ExamProblems] = []
        base, other = (self._evaluated(subject, mode, model, papers) for model in models)
        return compare(base, other).rows[ACCURACY]

    def _evaluated(self, subject: str, mode: str, model: str, papers: list[ExamProblems]) -> Judged:
        path = self.out / f"{file_name(model, subject, mode, f'first{self.problems}', f'n{self.n}')}.json"
        if path.is_file():
            return read_evaluation(path)
        config = SUBJECTS[subject].config
        papers += [] if papers else [self._paper(subject, mode)]
        policy = load_policy(
            Model.model_validate({"path": model, "device": self.device, "template": config.model.template})
        )
        rows = 2048 if policy.device.type == "cuda" else ROWS_AT_ONCE
        respondent = LocalModel(
            model, policy, config.segments.tags, rows_at_once=rows, episodes=config.rollout.episodes
        )
        evaluation = evaluate(respondent, papers[0], lambda done, of: None)
        write_evaluation(path.parent, path.stem, evaluation, Origin(model))
        return evaluation

    def _paper(self, subject: str, mode: str) -> ExamProblems:
        chosen = SUBJECTS[subject]
        config, lesson = chosen.config, _LESSONS[chosen.lesson]
        name, settings = lesson.task, {**lesson.settings, "mode": config.task.settings.get("mode")}
        settings = {key: value for key, value in settings.items() if value is not None}
        task = load_task(name, **settings)
        assert isinstance(task, SourcedTask)
        problems = tuple(held_out(lesson, task, self.problems))
        tokens = config.rollout.max_response_tokens
        sampling = Sampling(1, 0.0, max_tokens=tokens) if mode == "greedy" else Sampling(self.n, max_tokens=tokens)
        return ExamProblems(Exam(name, settings, sampling=sampling), task, problems, sandbox_tier(task, settings))


def verdict_on(difference: PairedDifference, margin: float) -> str:
    """Return whether the second model is at most `margin` worse: "held", "worse", or "not shown" by this interval."""
    low, high = difference.delta.low, difference.delta.high
    if low is None or high is None:
        return "not shown"
    return "held" if low > -margin else "worse" if high < -margin else "not shown"


def table(rows: Sequence[dict[str, Any]]) -> str:
    head = "| exam | problems | first | second | difference (95 % interval) | |\n|---|---|---|---|---|---|"
    return "\n".join([head, *map(_line, rows)])


def _line(row: dict[str, Any]) -> str:
    delta = row["delta"]
    low, high = ("?" if delta[end] is None else f"{100 * delta[end]:+.1f}" for end in ("low", "high"))
    difference = f"{100 * delta['value']:+.1f} ({low} to {high})"
    first, second = f"{100 * row['base']:.1f}", f"{100 * row['other']:.1f}"
    return f"| {row['exam']} | {delta['num_problems']} | {first} | {second} | {difference} | {row['verdict']} |"


def run_comparison(models: Sequence[str], examiner: Examiner, subjects: Sequence[str], margin: float) -> str:
    """Examine both models on each subject, sampled and greedy. Write `comparison.json` and return the table."""
    rows: list[dict[str, Any]] = []
    for subject in subjects:
        if subject == "code" and not sandbox_status().ok:
            print("code: left out, since no sandbox works here (egpo doctor)", flush=True)
            continue
        for mode in MODES:
            difference = examiner.difference(subject, mode, models)
            rows.append({"exam": f"{subject}, {mode}", **asdict(difference), "verdict": verdict_on(difference, margin)})
            print(_line(rows[-1]), flush=True)
            value = {"models": list(models), "n": examiner.n, "margin": margin, "rows": rows}
            write_atomically(examiner.out / "comparison.json", json.dumps(value, indent=2) + "\n")
    return table(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs=2, metavar="MODEL", help="model folders or names: the old one, the new one")
    parser.add_argument("--out", type=Path, required=True, help="folder for evaluations and comparison.json")
    parser.add_argument("--problems", type=int, default=1024, help="default: 1024")
    parser.add_argument("--n", type=int, default=16, help="sampled responses per problem; default: 16")
    parser.add_argument("--margin", type=float, default=0.02, help="accuracy that may be lost; default: 0.02")
    parser.add_argument("--exams", nargs="+", choices=list(SUBJECTS), default=list(SUBJECTS))
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    examiner = Examiner(given.out, given.problems, given.n, given.device)
    print(run_comparison(given.models, examiner, given.exams, given.margin))


if __name__ == "__main__":
    main()
