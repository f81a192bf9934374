"""Stored rollouts, one at a time: our JSON lines, verl's, or parquet with the responses."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from egpo.config.includes import read_layers
from egpo.data.readers import Record, read_records
from egpo.errors import InputError
from egpo.rewards.boundary import finite, first_present
from egpo.rewards.samples import Sample, read_sample
from egpo.rewards.verdict import Verdict
from egpo.tasks import load_task

ROLLOUT_FOLDERS = ("rollouts", "validations")
STORED_REWARD_KEYS = ("reward", "score")
STORED_CORRECT_KEYS = ("correct", "acc")


@dataclass(frozen=True)
class Rollout:
    """A response with its place in the file, and the verdict that was stored with it, if any."""

    where: str
    sample: Sample
    stored: Verdict | None


@dataclass(frozen=True)
class RunMode:
    """The mode of the reward in a run, and the config that says so."""

    mode: str
    config: Path


def mode_of_run(path: Path) -> RunMode | None:
    """The mode in which the run judged the rollouts of this file. None: the file lies in no run folder, or the task
    has no modes, or it comes from outside the package.

    Rollouts lie in `rollouts/` of a run folder, and verl's own dumps in `verl/rollouts/` and `verl/validations/`.
    """
    folders = [folder for folder in path.absolute().parents[1:3] if (folder / "config.yaml").is_file()]
    if path.absolute().parent.name not in ROLLOUT_FOLDERS or not folders:
        return None
    config = folders[0] / "config.yaml"
    task = read_layers(config, "config of the run").value.get("task") or {}
    name, settings = task.get("name"), task.get("settings") or {}
    if not isinstance(name, str) or ":" in name:
        return None
    # The mode alone: a source that has since been moved does not matter here.
    mode = getattr(load_task(name, **{key: settings[key] for key in settings if key == "mode"}), "mode", None)
    return None if mode is None else RunMode(mode, config)


def read_rollouts(path: Path) -> Iterator[Rollout]:
    """Every rollout of a file, streaming. A record without a response or a ground truth is an error that names it."""
    for record in read_records(path):
        for value, where in _unfolded(record):
            yield Rollout(where, read_sample(value, where), stored_verdict(value, where))


def _unfolded(record: Record) -> Iterator[tuple[Mapping[str, Any], str]]:
    """verl's generation writes all responses to a prompt into one row, as the list `responses`."""
    many = record.value.get("responses")
    if not isinstance(many, list) or "response" in record.value:
        yield record.value, record.where
        return
    for number, response in enumerate(many):
        yield {**record.value, "response": response}, f"{record.where}, response {number}"


def stored_verdict(record: Mapping[str, Any], where: str) -> Verdict | None:
    """What the run said at the time. Without a word on correctness a reward of 1 or more counts as right."""
    reward = first_present(record, STORED_REWARD_KEYS)
    if reward is None:
        return None
    if not isinstance(reward, int | float):
        raise InputError(f"the stored reward is {reward!r:.80}", where=where, fix="it should be a number")
    correct = first_present(record, STORED_CORRECT_KEYS)
    right = reward >= 1 if correct is None else bool(correct)
    reason = str(first_present(record, ("reason",)) or "stored")
    number = finite(reward)
    if number is None or first_present(record, ("failed",)):
        return Verdict(number or 0.0, False, reason, failed=True)
    return Verdict(number, right, reason)
