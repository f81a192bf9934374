"""Copies verl's metrics and rollouts into our run folder, step by step, and removes old checkpoints.

`MetricFeed` reads verl's file logger, one line per step: `{"step": N, "data": {name: value}}`. `VerlCheckpoints` finds
complete checkpoints. `Mirror` records the metrics and removes old checkpoints.
"""

import json
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from egpo.config import Config
from egpo.errors import InputError
from egpo.files import write_atomically
from egpo.runs.folder import RunFolder
from egpo.runs.ledger import Ledger
from egpo.runs.metric_table import REWARD, validation_accuracy
from egpo.runs.metrics import MetricStream, read_metrics
from egpo.verl.launch.layout import VerlPlaces

RENAMED = {"actor/kl_loss": "actor/kl", "actor/reward_kl_penalty": "actor/kl"}
"""Metrics that are stored under another name than verl's: verl's name, and the name in both engines."""
_NO_CLOCK = ("perf/total_num_tokens",)


@dataclass(frozen=True)
class StepFigures:
    """The metrics of one step. Timings are stored separately, in `timings.jsonl`, as under the embedded engine."""

    step: int
    metrics: Mapping[str, float]
    timings: Mapping[str, float]


class MetricFeed:
    """A reader of verl's metrics file that returns each line once. A line without its newline is not complete yet."""

    def __init__(self, path: Path) -> None:
        self._path, self._position = path, 0

    def new(self) -> Iterator[StepFigures]:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._position)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._position += len(line)
                yield _figures(json.loads(line))


def _figures(line: Mapping[str, Any]) -> StepFigures:
    """Split the finite numbers of a line into metrics and timings. (verl writes other values as null.)"""
    known = {RENAMED.get(name, name): value for name, value in line["data"].items() if _is_number(value)}
    timings = {name: value for name, value in known.items() if _depends_on_the_machine(name)}
    metrics = {name: value for name, value in known.items() if name not in timings}
    return StepFigures(int(line["step"]), metrics, timings)


def _depends_on_the_machine(name: str) -> bool:
    """Return whether the metric is a time, a throughput or memory: `timing_s/step`, `perf/throughput`."""
    return name.startswith("timing_") or ("perf/" in name and name not in _NO_CLOCK)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True)
class VerlCheckpoints:
    """verl's checkpoints of a run: `global_step_N/actor/model_world_size_W_rank_R.pt` for each of `ranks` ranks.

    verl writes the step number of the latest checkpoint to a file, after all files of that checkpoint.
    """

    folder: RunFolder
    ranks: int

    def complete_steps(self) -> list[int]:
        """Return the steps of complete checkpoints, in order.

        A checkpoint of a later step than the number in verl's file is incomplete, even if all its files exist.
        """
        latest = self._latest()
        return [step for step in self._steps() if step <= latest and self._is_whole(step)]

    def has_after(self, step: int) -> bool:
        """Return whether there is a checkpoint of a later step, complete or not."""
        return any(later > step for later in self._steps())

    def choose(self, step: int | None) -> int:
        """Return `step`, or for None the newest step with a checkpoint (0 if none). InputError if `step` has none."""
        there = self.complete_steps()
        if step is None:
            return there[-1] if there else 0
        if step not in there:
            known = f"available steps: {', '.join(map(str, there))}" if there else "the run has no checkpoint yet"
            where = str(self.folder.checkpoints)
            raise InputError(f"there is no complete checkpoint of step {step}", where=where, fix=known)
        return step

    def forget_after(self, step: int) -> None:
        """Remove the checkpoints after `step`, complete or not: the run will write them again."""
        for later in self._steps():
            if later > step:
                shutil.rmtree(self.folder.checkpoint_of(later))
        if step:
            write_atomically(self.folder.latest, str(step))
        else:
            self.folder.latest.unlink(missing_ok=True)

    def _steps(self) -> list[int]:
        names = [path.name.removeprefix("global_step_") for path in self.folder.checkpoints.glob("global_step_*")]
        return sorted(int(name) for name in names if name.isdecimal())

    def _latest(self) -> int:
        """Return verl's number of the latest checkpoint; 0 before the first.

        verl writes the number in place, after all files of a checkpoint: if a crash left the number file empty, every
        checkpoint that has its files is complete.
        """
        if not self.folder.latest.exists():
            return 0
        number = self.folder.latest.read_text(encoding="utf-8", errors="replace").strip()
        return int(number) if number.isdecimal() else max(self._steps(), default=0)

    def _is_whole(self, step: int) -> bool:
        folder: Path = self.folder.checkpoint_of(step)
        names = [f"model_world_size_{self.ranks}_rank_{rank}.pt" for rank in range(self.ranks)]
        return (folder / "data.pt").is_file() and all((folder / "actor" / name).is_file() for name in names)


class Mirror:
    """Records verl's metrics in the run folder and removes old checkpoints.

    `done` is the last step in `metrics.jsonl`, or `start`, the step that the run was resumed from, if the metrics of
    that step were lost; 0 before the first step.
    """

    def __init__(self, config: Config, places: VerlPlaces, ledger: Ledger, start: int = 0) -> None:
        self._config, self._places, self._ledger, self._start = config, places, ledger, start
        self._recorded = recorded_steps(places.folder.metrics)
        self._checkpoints = VerlCheckpoints(places.folder, config.verl.ranks)

    @property
    def done(self) -> int:
        return max({self._start, *self._recorded})

    @property
    def awaits_figures(self) -> bool:
        """Whether there is a checkpoint without metrics yet: verl saves a step's checkpoint before it logs the step."""
        return self._checkpoints.has_after(self.done)

    @property
    def is_training(self) -> bool:
        """Whether there are steps left to take."""
        return self.done < self._config.steps

    def take(self, figures: Iterable[StepFigures]) -> int:
        """Record new steps, and return their number.

        A step that is already in the file is skipped: a launcher that was killed may have recorded it.
        """
        new = [one for one in figures if one.step > max(self._recorded, default=-1)]
        for one in new:
            self._recorded.add(one.step)
            self._ledger.record(one.step, one.metrics, one.timings)
            # Before the next step: a tracker may refuse a table of an earlier one.
            move_rollouts(self._places)
            self._ledger.send_samples(one.step)
        if new:
            self.keep_checkpoints()
        return len(new)

    def forget_unlogged_checkpoints(self) -> None:
        """Remove checkpoints of steps without metrics: a run resumed there would have a gap in its curves."""
        whole = [step for step in self._checkpoints.complete_steps() if step <= self.done]
        self._checkpoints.forget_after(max(whole, default=0))

    def keep_checkpoints(self) -> None:
        """Remove all checkpoints but the latest and the best (by validation accuracy, or without it by mean score).

        A checkpoint without metrics does not count as the latest: its metrics may never be written.
        """
        keep = self._config.checkpoints
        scores = checkpoint_scores(self._places.folder.metrics, validated=bool(self._config.validation.every))
        steps = [step for step in self._checkpoints.complete_steps() if step <= self.done]
        best = sorted((step for step in steps if step in scores), key=lambda step: (scores[step], step), reverse=True)
        stay = {*steps[-keep.keep_last :], *best[: keep.keep_best]}
        for step in steps:
            if step not in stay:
                shutil.rmtree(self._places.folder.checkpoint_of(step), ignore_errors=True)


def move_rollouts(places: VerlPlaces) -> None:
    """Move the dumps that verl has written so far into the run folder."""
    for source in places.rollouts.glob("*.jsonl"):
        places.folder.rollouts.mkdir(exist_ok=True)
        with suppress(OSError):
            os.replace(source, places.folder.rollouts_of(int(source.stem)))


def adopt_figures(folder: RunFolder, metrics: Path) -> None:
    """Record steps that verl had logged when its launcher was killed and that are not in the run folder yet."""
    recorded = recorded_steps(folder.metrics)
    for one in MetricFeed(metrics).new():
        if one.step > max(recorded, default=-1):
            MetricStream(folder.timings).append(one.step, one.timings)
            MetricStream(folder.metrics).append(one.step, one.metrics)
            recorded.add(one.step)
    metrics.unlink(missing_ok=True)


def checkpoint_scores(metrics: Path, *, validated: bool) -> dict[int, float]:
    """Return the score of each step by which checkpoints are ranked.

    If `validated`, this is the latest validation accuracy at that step, otherwise the mean score of the responses.
    """
    scores: dict[int, float] = {}
    last: float | None = None
    for line in read_metrics(metrics) if metrics.exists() else []:
        found = validation_accuracy(line) if validated else line.get(REWARD)
        last = last if found is None else found
        if last is not None:
            scores[line["step"]] = last
    return scores


def recorded_steps(metrics: Path) -> set[int]:
    return {line["step"] for line in read_metrics(metrics)} if metrics.exists() else set()
