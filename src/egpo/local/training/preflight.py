"""What is looked at before the first step: a fault found here costs seconds, and hours later."""

import hashlib
import json
from itertools import islice
from pathlib import Path

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from egpo.data.manifest import data_digest
from egpo.errors import InputError, warn_once
from egpo.local.checkpoints.checkpoint import Checkpoints, room_for
from egpo.local.models.prompts import prompt_tokens, require_room
from egpo.local.run import Run
from egpo.local.validate import held_out_problems
from egpo.rewards.scoring import DATA_SOURCES, require_visible_tags, vanishing_tags
from egpo.support import optimizer_bytes
from egpo.tasks import Problem, Task
from egpo.tasks.load import sandbox_tier
from egpo.tasks.sourced import SourcedTask

_PROMPTS_LOOKED_AT = 10_000
"""Seconds of work. A longer one that comes later ends the run then, and nothing is lost."""


def check_before_training(run: Run) -> str | None:
    """An InputError where training would fail or teach nothing; the tier of the sandbox, where programs will run."""
    require_tags_in_text(run.policy.tokenizer, run.config.segments.tags, run.task)
    problems = list(islice(run.task.problems("train"), _PROMPTS_LOOKED_AT))
    _require_prompts_fit(run, problems)
    if run.config.validation.every:
        _require_prompts_fit(run, held_out_problems(run))
    return sandbox_tier(run.task, run.config.task.settings)


def require_disk_room(run: Run, checkpoints: Checkpoints) -> None:
    """Room for one checkpoint at least; a warning where there is none for all that are to be kept."""
    need, keep = checkpoint_bytes(run), run.config.checkpoints
    room = room_for(checkpoints.root, need)
    wanted = keep.keep_last + keep.keep_best + 1 - len(checkpoints.steps())
    said = f"a checkpoint takes about {size_text(need)}, and the disk has room for {room}"
    if not room:
        raise InputError(said, where=str(checkpoints.root), fix="make room, or give a roomier place as runs=...")
    if room < wanted:
        warn_once("disk room", f"{checkpoints.root}: {said}; up to {wanted} more are wanted (checkpoints.keep_last)")


def size_text(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB" if num_bytes >= 2**30 / 100 else f"{num_bytes / 2**20:.1f} MiB"


def checkpoint_bytes(run: Run) -> int:
    """Weights, AdamW's two averages in float32, and a float32 master of those weights that have fewer bits."""
    weights: list[Tensor] = list(run.policy.model.parameters())
    trained = [weight for weight in weights if weight.requires_grad]
    sizes = [weight.numel() * weight.element_size() for weight in weights]
    return sum(sizes) + sum(optimizer_bytes(weight.element_size()) * weight.numel() for weight in trained)


def data_digests(run: Run) -> dict[str, str]:
    """By split: of its file's rows, or of the problems that were generated. They tell whether two runs saw the same
    data."""
    if files := data_files(run):
        return {split: data_digest(path) for split, path in files.items()}
    return {split: _digest(run, split) for split in _splits(run)}


def data_files(run: Run) -> dict[str, Path]:
    """By split: the file that the task reads; none where it draws its problems."""
    source = run.task.source if isinstance(run.task, SourcedTask) else None
    return {} if source is None else {split: source / f"{split}.parquet" for split in _splits(run)}


def _splits(run: Run) -> tuple[str, ...]:
    return ("train", "test") if run.config.validation.every else ("train",)


def _digest(run: Run, split: str) -> str:
    digest = hashlib.sha256()
    for problem in run.task.problems(split):
        shown = [problem.key, [dict(message) for message in problem.messages], problem.ground_truth]
        digest.update(json.dumps(shown, default=str).encode("utf-8", "backslashreplace"))
    return digest.hexdigest()


def require_tags_in_text(tokenizer: PreTrainedTokenizerBase, tags: tuple[str, str], task: Task) -> None:
    """The judge reads text without special tokens. What a judge from outside looks for, nobody can know."""
    if isinstance(task, SourcedTask) and task.data_source in DATA_SOURCES:
        require_visible_tags(tokenizer, task.data_source, tags)
    elif lost := vanishing_tags(tokenizer, tags):
        warn_once(
            "vanishing tags",
            f"`{lost[0]}` is a special token of the tokenizer, and the judge reads text without those: "
            "a judge that looks for it will not find it",
        )


def _require_prompts_fit(run: Run, problems: list[Problem]) -> None:
    longest, room = run.config.rollout.max_prompt_tokens, run.config.rollout.max_response_tokens
    for problem, prompt in zip(problems, prompt_tokens(run.policy, run.task, problems), strict=True):
        if longest is None or len(prompt) <= longest:
            require_room(run.policy, problem, len(prompt), room)
