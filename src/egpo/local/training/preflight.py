"""Checks before the first step, and digests of the data. An error found here costs seconds instead of hours."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from egpo.config.machine import model_folder
from egpo.data.manifest import data_digest
from egpo.errors import InputError, warn_once
from egpo.local.checkpoints.checkpoint import Checkpoints, room_for
from egpo.local.models.policy import require_room
from egpo.local.run import Run
from egpo.local.sampling.prompt_lengths import prompt_lengths
from egpo.local.validate import held_out_problems
from egpo.model_sources import origin_facts
from egpo.rewards.scoring import DATA_SOURCES, require_visible_tags, vanishing_tags
from egpo.support import optimizer_bytes
from egpo.tasks import Dataset, Problem, Task
from egpo.tasks.episodes import environment_of, host_of
from egpo.tasks.loading import sandbox_tier
from egpo.tasks.protocol import problems_digest
from egpo.tasks.sourced import SourcedTask

_PROMPTS_CHECKED = 10_000
"""Number of prompts whose length is checked before training, which takes seconds. If a later prompt is too long, the
run is saved and ends when it reaches that prompt."""
_STARTS_CHECKED = 64
"""The same number for environments that have to be waited for: each prompt is known only after a `reset`."""


def check_before_training(run: Run) -> str | None:
    """Raise InputError if the settings or the data would make training fail or prevent it from learning.

    Return the kind of sandbox, or None if the task does not run programs written by the model.
    """
    run.config.algorithm.check_estimator()
    run.config.update.check_names()
    require_tags_in_text(run.policy.tokenizer, run.config.segments.tags, run.task)
    problems = list(islice(run.task.problems("train"), _PROMPTS_CHECKED))
    _require_prompts_fit(run, problems)
    if run.config.validation.every:
        _require_prompts_fit(run, held_out_problems(run))
    return sandbox_tier(run.task, run.config.task.settings)


def require_disk_room(run: Run, checkpoints: Checkpoints) -> None:
    """Raise InputError if not even one checkpoint fits on the disk. Warn if fewer fit than will be kept."""
    need, keep = checkpoint_bytes(run), run.config.checkpoints
    room = room_for(checkpoints.root, need)
    wanted = keep.keep_last + keep.keep_best + 1 - len(checkpoints.steps())
    found = f"a checkpoint takes about {size_text(need)}, and the disk has room for {room}"
    if not room:
        raise InputError(found, where=str(checkpoints.root), fix="free some space, or set runs=... to a larger disk")
    if room < wanted:
        warn_once("disk room", f"{checkpoints.root}: {found}; up to {wanted} more will be kept (checkpoints.keep_last)")


def size_text(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB" if num_bytes >= 2**30 / 100 else f"{num_bytes / 2**20:.1f} MiB"


def checkpoint_bytes(run: Run) -> int:
    """Return the size of a checkpoint in bytes: weights, AdamW's two moments, and float32 copies of 16-bit weights."""
    weights: list[Tensor] = list(run.policy.model.parameters())
    trained = [weight for weight in weights if weight.requires_grad]
    sizes = [weight.numel() * weight.element_size() for weight in weights]
    return sum(sizes) + sum(optimizer_bytes(weight.element_size()) * weight.numel() for weight in trained)


def data_digests(run: Run) -> dict[str, str]:
    """Return a digest of the data of each split (the rows of its file, or the generated problems).

    Equal digests mean equal data. For a model that was converted from a GGUF file, `model` says where it comes from.
    """
    origin = origin_facts(model_folder(run.config.model.path))
    if files := data_files(run):
        return {split: data_digest(path) for split, path in files.items()} | origin
    return {split: problems_digest(run.task.problems(split)) for split in _splits(run)} | origin


def data_files(run: Run) -> dict[str, Path]:
    """Return the data file of each split, or an empty dict if the task generates its problems."""
    source = run.task.source if isinstance(run.task, SourcedTask) else None
    return {} if source is None else {split: source / f"{split}.parquet" for split in _splits(run)}


def _splits(run: Run) -> tuple[str, ...]:
    return ("train", "test") if run.config.validation.every else ("train",)


def require_tags_in_text(tokenizer: PreTrainedTokenizerBase, tags: tuple[str, str], task: Task) -> None:
    """Raise InputError if the tags are special tokens: a built-in judge reads text without special tokens.

    For a user's task only warn: its judge may not need the tags.
    """
    if isinstance(task, SourcedTask | Dataset) and task.data_source in DATA_SOURCES:
        require_visible_tags(tokenizer, task.data_source, tags)
    elif lost := vanishing_tags(tokenizer, tags):
        warn_once(
            "vanishing tags",
            f"`{lost[0]}` is a special token of the tokenizer, and the judge reads text without special tokens: "
            "a judge that looks for it will not find it",
        )


def _require_prompts_fit(run: Run, problems: list[Problem]) -> None:
    """Raise InputError if a prompt leaves no room for its response, or lacks the tools of its environment."""
    longest, room = run.config.rollout.max_prompt_tokens, run.config.rollout.max_response_tokens
    checked = problems[: num_prompts_checked(run, problems)]
    at_once = run.config.rollout.prompts * run.config.rollout.n  # a server may allow no more sessions than a step has
    lengths = prompt_lengths(run.policy, run.task, checked, run.config.rollout.episodes, at_once=at_once)
    for problem, length in zip(checked, lengths, strict=True):
        if longest is None or length <= longest:
            require_room(run.policy, problem, length, room)


def num_prompts_checked(run: Run, problems: Sequence[Problem]) -> int:
    """Return how many prompts are measured before training: few if an environment has to be waited for each time."""
    waits = any(
        environment_of(run.task, problem) is not None and not host_of(run.task, problem).is_fast
        for problem in islice(problems, _PROMPTS_CHECKED)
    )
    return _STARTS_CHECKED if waits else _PROMPTS_CHECKED
