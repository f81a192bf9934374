"""The cold start of a recipe: supervised fine-tuning on the task's gold answers, from which RL then starts.

A cold start is a run of `egpo sft` in `runs/cold_starts/`. Its name contains a digest of everything that determines its
weights, so recipes that differ only in what comes later (estimator, seed, learning rate of RL) share one cold start.
It learns from the training split only.
"""

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from egpo.benchmark_cases import ROW_KEY, case_name
from egpo.config import Config, SftConfig
from egpo.config.machine import model_identity
from egpo.config.schema import Checkpoints, ColdStart, SftData, SftUpdate, Trackers
from egpo.errors import EgpoError, InputError
from egpo.files import fsync_path, fsync_tree, write_atomically
from egpo.fingerprints import digest_of
from egpo.prepared_data import data_plan, require_prepared_data, with_prepared_data
from egpo.rewards.answers import split_thinking
from egpo.tasks import Problem, Task, load_task
from egpo.tasks.episodes import environment_of, gold_conversation
from egpo.tool_calls.calls import OPEN

FOLDER = "cold_starts"
_FORMAT = 1
"""Raised when the same inputs give other examples."""


@dataclass(frozen=True)
class ColdStartPlan:
    """A plan for the cold start of a recipe that has one."""

    config: Config
    settings: ColdStart

    @cached_property
    def inputs(self) -> dict[str, str]:
        """Digests of everything that determines the weights."""
        config, data = self.config, data_plan(self.config)
        task = [config.task.name, config.task.settings] if data is None else data.inputs
        return {
            "model": model_identity(config.model.path),
            "loading": digest_of(config.model.model_dump(mode="json", exclude={"path", "device", "lora"})),
            "data": digest_of([task, config.task.settings.get("mode")]),
            "cold_start": digest_of([_FORMAT, self.settings.model_dump(mode="json"), self.is_thinking]),
            "tags": digest_of(config.segments.tags),
        }

    @property
    def is_thinking(self) -> bool:
        """Whether the examples have their reasoning between the thinking tags."""
        chosen = self.settings.thinking
        return self.config.algorithm.segment == "thinking" if chosen is None else chosen

    @property
    def name(self) -> str:
        model = re.sub(r"[^A-Za-z0-9._-]+", "_", Path(self.config.model.path).name)[:40].strip("._-") or "model"
        return f"{model}-{self.config.task.name.rpartition(':')[2]}-{digest_of(self.inputs)[:12]}"

    @property
    def folder(self) -> Path:
        """The run folder of the supervised training."""
        return Path(self.config.runs) / FOLDER / self.name

    @property
    def examples(self) -> Path:
        """The file of conversations that are learned."""
        return self.folder.with_name(f"{self.name}.jsonl")

    @property
    def model(self) -> Path:
        """The folder of the finished model. It exists only if the cold start is complete."""
        return self.folder / "model"

    @property
    def training(self) -> SftConfig:
        """The recipe of the supervised training."""
        settings = self.settings
        return SftConfig(
            name=self.name,
            runs=str(self.folder.parent),
            seed=settings.seed,
            epochs=settings.epochs,
            model=self.config.model.model_copy(update={"lora": None}),
            data=SftData(path=str(self.examples), max_tokens=settings.max_tokens),
            update=SftUpdate(
                lr=settings.lr,
                batch_tokens=settings.batch_tokens,
                schedule=settings.schedule,
                warmup_steps=settings.warmup_steps,
            ),
            checkpoints=Checkpoints(every=settings.save_every, keep_last=1),
            watch=Trackers(),
        )


def cold_start_plan(config: Config) -> ColdStartPlan | None:
    """Return the plan of the recipe's cold start; None if it has none."""
    return None if config.cold_start is None else ColdStartPlan(config, config.cold_start)


def with_cold_start(config: Config) -> Config:
    """Return the config that RL trains: its model is that of the cold start, whether that exists yet or not."""
    plan = cold_start_plan(config)
    if plan is None:
        return config
    model = config.model.model_copy(update={"path": str(plan.model)})
    return config.model_copy(update={"model": model, "cold_start": None})


def require_inputs(config: Config, recipe: str) -> Config:
    """Return the config that reads the prepared data and starts from the cold start, for verbs that make neither.

    InputError, with the command that makes it, if one of them is not there yet.
    """
    plan = cold_start_plan(config)
    if plan is not None and not plan.model.is_dir():
        fix = f"egpo run {recipe} --only prepare,cold_start"
        raise InputError("the cold start is not trained yet", where="cold_start", fix=fix)
    return require_prepared_data(with_cold_start(config), recipe)


def require_gold_answer(plan: ColdStartPlan) -> None:
    """Raise InputError if the first training problem has no gold answer. Data that must be prepared first are not
    looked at: their examples are checked when they are written, before anything is trained."""
    config = plan.config
    if data_plan(config) is None:
        task = load_task(config.task.name, **config.task.settings)
        for problem in islice(task.problems("train"), 1):
            _gold(task, problem)


def make_cold_start(plan: ColdStartPlan) -> str:
    """Train the cold start, or resume it. Return one line: the number of examples and the folder of the model."""
    from egpo.local.sft.session import sft

    if plan.model.is_dir():
        return f"{plan.model}, there already"
    prepared = with_prepared_data(plan.config)
    count = _write_examples(plan, load_task(prepared.task.name, **prepared.task.settings))
    trained = sft(plan.training, resume=(plan.folder / "config.yaml").is_file())
    _publish(trained, plan.model)
    return f"{plan.model}: {count:,} gold answers, {plan.settings.epochs} epochs"


def _write_examples(plan: ColdStartPlan, task: Task) -> int:
    """Write one conversation per training problem, and return their number."""
    problems = task.problems("train")
    tested = {problem.key for problem in task.problems("test")}
    lines = []
    for problem in islice(problems, plan.settings.problems):
        if problem.key in tested:
            fix = "remove the test problems from the training data"
            raise InputError("a problem is in both splits", where=f"problem {problem.key!r:.80}", fix=fix)
        lines.append(json.dumps(_example(plan, task, problem), ensure_ascii=False))
    if not lines:
        raise InputError("the task has no training problems", where="cold_start", fix="prepare its data first")
    plan.examples.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(plan.examples, ("\n".join(lines) + "\n").encode("utf-8", "backslashreplace"))
    return len(lines)


def _example(plan: ColdStartPlan, task: Task, problem: Problem) -> Mapping[str, Any]:
    case = case_name(task, problem.key)
    named = {} if case is None else {ROW_KEY: case}
    if environment_of(task, problem) is not None:
        return {**gold_conversation(task, problem), **named}
    answer = _gold(task, problem)
    if plan.is_thinking:
        answer = with_thinking(answer, plan.config.segments.tags)
    return {"messages": [*task.prompt(problem), {"role": "assistant", "content": answer}], **named}


def _gold(task: Task, problem: Problem) -> str:
    try:
        answer = task.gold(problem)
    except EgpoError as error:
        fix = "leave out `cold_start`, or give the task gold answers"
        what = f"the task has no gold answer ({error.faults[0].what})"
        raise InputError(what, where=f"cold_start, problem {problem.key!r:.60}", fix=fix) from error
    if not isinstance(answer, str) or not answer.strip():
        fix = "leave out `cold_start`, or give the task gold answers"
        raise InputError("the task has no gold answer", where=f"cold_start, problem {problem.key!r:.60}", fix=fix)
    return answer


def with_thinking(answer: str, tags: tuple[str, str]) -> str:
    """Return the answer with its reasoning between the tags.

    The reasoning is all but the last line, or what precedes the first tool call. An answer that has closed thinking,
    or no reasoning, is returned as it is.
    """
    if split_thinking(answer, tags).closed:
        return answer
    reasoning, opening, final = answer.strip().partition(OPEN)
    if opening:
        final = opening + final
    else:
        reasoning, _, final = answer.strip().rpartition("\n")
    return f"{tags[0]}\n{reasoning.strip()}\n{tags[1]}\n\n{final.strip()}" if reasoning.strip() else answer


def _publish(trained: Path, model: Path) -> None:
    """Give the model of the last checkpoint its own folder, whole or not at all. Files are linked where possible."""
    unfinished = model.with_name(f".{model.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        shutil.copytree(trained, unfinished, copy_function=_linked)
        fsync_tree(unfinished)
        unfinished.rename(model)
        fsync_path(model.parent)
    except OSError as error:
        fix = "free some disk space, then run the same command again"
        raise EgpoError(f"the model cannot be written ({error.strerror})", where=str(model), fix=fix) from error


def _linked(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)
