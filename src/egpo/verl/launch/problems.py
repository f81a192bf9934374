"""Writes the task's problems as parquet files for verl: the same problems and prompts as under the embedded engine."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from egpo.chat_templates import render
from egpo.config import Config
from egpo.data.manifest import data_digest
from egpo.data.output import StagedFiles
from egpo.data.rows import Row, write_parquet
from egpo.errors import InputError
from egpo.tasks import Problem, Task, load_task
from egpo.tasks.loading import data_source_of
from egpo.tasks.sourced import SourcedTask
from egpo.verl.episode_player import AGENT_NAME, COLUMN, EpisodePlayer, episode_spec
from egpo.verl.launch.layout import VerlPlaces

LIMIT = "rollout.max_prompt_tokens"
UNMEASURED = 512
"""The longest prompt, in tokens, that a dry run assumes without a tokenizer: verl's own default."""


@dataclass(frozen=True)
class ProblemFiles:
    """The data files that verl reads, with the properties that verl's settings depend on.

    `test` is None without validation; `data_source` is None for a custom task, which judges responses itself; `mode` is
    that of the reward. Prompts have at most `longest_prompt` tokens; `longest_prompt_source` says how that is known.
    `episodes`: the rows are played in environments, which judge them.
    """

    train: Path
    test: Path | None
    data_source: str | None
    mode: str | None
    longest_prompt: int
    longest_prompt_source: str
    episodes: bool = False

    @property
    def by_split(self) -> dict[str, Path]:
        return {"train": self.train} | ({} if self.test is None else {"test": self.test})

    @property
    def digests(self) -> dict[str, str]:
        """The digest of the rows of each file."""
        return {split: data_digest(path) for split, path in self.by_split.items()}


def planned_files(config: Config, places: VerlPlaces) -> ProblemFiles:
    """Return what `write_problems` would write, for a dry run: the task is loaded, but no problem is generated."""
    longest, source = config.rollout.max_prompt_tokens, LIMIT
    if longest is None:
        longest, source = UNMEASURED, "assumed; measured on the prompts at launch"
    return _files(config, places, load_task(config.task.name, **config.task.settings), longest, source)


def chosen_problems(config: Config, task: Task) -> dict[str, Sequence[Problem]]:
    """Return the training and validation problems by split. InputError if they are too few for a step."""
    problems: dict[str, Sequence[Problem]] = {"train": task.problems("train")}
    if len(problems["train"]) < config.rollout.prompts:
        what = f"{len(problems['train'])} problems are fewer than one step needs ({config.rollout.prompts})"
        raise InputError(what, where=f"task {config.task.name}", fix="lower rollout.prompts, or prepare more data")
    if config.validation.every:
        problems["test"] = list(islice(task.problems("test"), config.validation.problems))
        if not problems["test"]:
            fix = "prepare its data with a test split, or train without validation: validation.every=0"
            raise InputError("the task has no problems to validate on", where=f"task {config.task.name}", fix=fix)
    return problems


@dataclass(frozen=True, eq=False)
class MeasuredProblems:
    """The problems that verl gets, by split, and the files to which `write_problems` writes them."""

    task: Task
    name: str
    by_split: Mapping[str, Sequence[Problem]]
    files: ProblemFiles


def measured_problems(config: Config, places: VerlPlaces, task: Task, tokenizer: Any) -> MeasuredProblems:
    """Return the training and validation problems with the length of their longest prompt. Nothing is written."""
    problems = chosen_problems(config, task)
    lengths = prompt_lengths(task, problems, tokenizer, config)
    longest, source = _longest(config, lengths)
    if has_environment(task):  # verl does not know the prompt of an episode, and so cannot leave out those too long
        problems = {
            split: [one for one, length in zip(chosen, lengths[split], strict=True) if length <= longest]
            for split, chosen in problems.items()
        }
    return MeasuredProblems(task, config.task.name, problems, _files(config, places, task, longest, source))


def write_problems(measured: MeasuredProblems, folder: Path) -> None:
    """Write the problems into `folder`, which is that of `measured.files`."""
    with StagedFiles(folder, force=True) as staged:
        for split, chosen in measured.by_split.items():
            write_parquet(staged.stage(f"{split}.parquet"), _rows(measured.task, measured.name, chosen), split)
        staged.commit()


def prompt_lengths(
    task: Task, problems: Mapping[str, Sequence[Problem]], tokenizer: Any, config: Config
) -> dict[str, list[int]]:
    """Return the lengths of the prompts in tokens, by split, with the model's chat template.

    The prompt of an episode is known only when its environment has started: each problem's is started once.
    """
    if has_environment(task):
        return _episode_lengths(task, problems, tokenizer, config)

    def num_tokens(problem: Problem) -> int:
        text = render(tokenizer, task.prompt(problem), variables=config.model.template)
        return len(tokenizer(text, add_special_tokens=False)["input_ids"])

    return {split: [num_tokens(problem) for problem in chosen] for split, chosen in problems.items()}


def has_environment(task: Task) -> bool:
    return getattr(task, "environment", None) is not None


def _episode_lengths(
    task: Task, problems: Mapping[str, Sequence[Problem]], tokenizer: Any, config: Config
) -> dict[str, list[int]]:
    limit, where = config.rollout.max_prompt_tokens, f"task {config.task.name}"
    specs = {split: [episode_spec(task, problem) for problem in chosen] for split, chosen in problems.items()}
    with EpisodePlayer.for_measuring(tokenizer, config) as player:
        if player.all_deterministic(one for chosen in specs.values() for one in chosen):
            return {split: player.prompt_lengths(chosen) for split, chosen in specs.items()}
    if limit is None:
        what = "the environment is not deterministic, so that the lengths of its prompts are not known"
        raise InputError(what, where=where, fix=f"set the largest number of tokens of a prompt: {LIMIT}")
    return {split: [limit] * len(chosen) for split, chosen in specs.items()}


def _longest(config: Config, lengths: Mapping[str, Sequence[int]]) -> tuple[int, str]:
    """Return the maximum length of a prompt in tokens (the limit, or the measured maximum), and its source.

    verl leaves out longer prompts, and divides by 0 if fewer than one step's prompts are left: that is an InputError.
    """
    limit = config.rollout.max_prompt_tokens
    if limit is None:
        return max(max(of_split) for of_split in lengths.values()), "the longest prompt"
    for split, of_split in lengths.items():
        needed = config.rollout.prompts if split == "train" else 1
        left = sum(length <= limit for length in of_split)
        if left < needed:
            what = f"{left} of {len(of_split)} {split} prompts have {limit} tokens or fewer, and {needed} are needed"
            raise InputError(what, where=LIMIT, fix=f"raise the limit: the longest prompt has {max(of_split)} tokens")
    return limit, LIMIT


def _files(config: Config, places: VerlPlaces, task: Task, longest: int, source: str) -> ProblemFiles:
    ours = isinstance(task, SourcedTask)
    return ProblemFiles(
        train=places.data / "train.parquet",
        test=places.data / "test.parquet" if config.validation.every else None,
        data_source=data_source_of(task, config.task.name) if ours else None,
        mode=getattr(task, "mode", None) if ours else None,
        longest_prompt=longest,
        longest_prompt_source=source,
        episodes=has_environment(task),
    )


def _rows(task: Task, name: str, problems: Sequence[Problem]) -> Iterator[Row]:
    """Yield the rows of a data file. The problems' `extra` is left out for a custom task, since it may have any form.

    A custom task finds its problem by split and index. A row of an episode has its environment, and the agent loop that
    plays it.
    """
    source, ours = data_source_of(task, name), isinstance(task, SourcedTask)
    for problem in problems:
        prompt = tuple({"role": message["role"], "content": message["content"]} for message in task.prompt(problem))
        if has_environment(task):
            extra = {COLUMN: episode_spec(task, problem).to_json()}
            yield Row(source, prompt, problem.ability, str(problem.ground_truth), extra, AGENT_NAME)
            continue
        yield Row(source, prompt, problem.ability, str(problem.ground_truth), problem.extra if ours else {})
