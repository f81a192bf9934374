"""verl's figures of a step, as its file logger writes them: `{"step": N, "data": {name: figure}}` a line.

verl's checkpoints in our run folder: which are whole, and which one a run goes on from.

A verl run in our run folder, step by step: metrics, health, rollouts, and which checkpoints stay.
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
"""verl's names for what every engine of ours calls otherwise."""
_NO_CLOCK = ("perf/total_num_tokens",)


@dataclass(frozen=True)
class StepFigures:
    """What the clock says has a file of its own, as under the local engine."""

    step: int
    metrics: Mapping[str, float]
    timings: Mapping[str, float]


class MetricFeed:
    """New lines of the file, each once. A line counts once its newline is there."""

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
    """Numbers only: what is not finite comes as null."""
    known = {RENAMED.get(name, name): value for name, value in line["data"].items() if _is_number(value)}
    timings = {name: value for name, value in known.items() if _depends_on_the_machine(name)}
    metrics = {name: value for name, value in known.items() if name not in timings}
    return StepFigures(int(line["step"]), metrics, timings)


def _depends_on_the_machine(name: str) -> bool:
    """Seconds, throughput, memory: `timing_s/step`, `perf/throughput`, `actor/perf/cpu_memory_used_gb`."""
    return name.startswith("timing_") or ("perf/" in name and name not in _NO_CLOCK)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True)
class VerlCheckpoints:
    """`global_step_N/actor/model_world_size_W_rank_R.pt` for each of `ranks`; verl writes the latest's number last."""

    folder: RunFolder
    ranks: int

    def complete_steps(self) -> list[int]:
        """In order. What is newer than the latest that verl names was cut off while it was written."""
        latest = self._latest()
        return [step for step in self._steps() if step <= latest and self._is_whole(step)]

    def has_after(self, step: int) -> bool:
        """Of a later step, whole or still being written."""
        return any(later > step for later in self._steps())

    def choose(self, step: int | None) -> int:
        """The newest, or that of `step`; 0 where there is none yet. An InputError names those that there are."""
        there = self.complete_steps()
        if step is None:
            return there[-1] if there else 0
        if step not in there:
            known = f"there are those of steps {', '.join(map(str, there))}" if there else "there is none yet"
            where = str(self.folder.checkpoints)
            raise InputError(f"no whole checkpoint of step {step}", where=where, fix=known)
        return step

    def forget_after(self, step: int) -> None:
        """Later ones go, whole or not: the run is about to write them again."""
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
        """0 before the first. verl writes the number in place, after all else of a checkpoint: where a crash left none
        in the file, every checkpoint that has its files is whole."""
        if not self.folder.latest.exists():
            return 0
        number = self.folder.latest.read_text(encoding="utf-8", errors="replace").strip()
        return int(number) if number.isdecimal() else max(self._steps(), default=0)

    def _is_whole(self, step: int) -> bool:
        folder: Path = self.folder.checkpoint_of(step)
        names = [f"model_world_size_{self.ranks}_rank_{rank}.pt" for rank in range(self.ranks)]
        return (folder / "data.pt").is_file() and all((folder / "actor" / name).is_file() for name in names)


class Mirror:
    """`done` is the last step whose figures are in `metrics.jsonl`, or `start`, that the run goes on from, where its
    own were lost; 0 before the first."""

    def __init__(self, config: Config, places: VerlPlaces, ledger: Ledger, start: int = 0) -> None:
        self._config, self._places, self._ledger, self._start = config, places, ledger, start
        self._recorded = recorded_steps(places.folder.metrics)
        self._checkpoints = VerlCheckpoints(places.folder, config.verl.ranks)

    @property
    def done(self) -> int:
        return max({self._start, *self._recorded})

    @property
    def awaits_figures(self) -> bool:
        """verl saves a step before it logs it: there is a checkpoint whose figures are still to come."""
        return self._checkpoints.has_after(self.done)

    def take(self, figures: Iterable[StepFigures]) -> int:
        """Record what is new; how many steps that were. A step that stands in the file already is passed over: a
        launcher that was killed may have taken it."""
        new = [one for one in figures if one.step > max(self._recorded, default=-1)]
        for one in new:
            self._recorded.add(one.step)
            self._ledger.record(one.step, one.metrics, one.timings)
        if new:
            move_rollouts(self._places)
            self.keep_checkpoints()
        return len(new)

    def forget_unlogged_checkpoints(self) -> None:
        """Those of steps whose figures never came: a run resumed there would have a hole in its curves."""
        whole = [step for step in self._checkpoints.complete_steps() if step <= self.done]
        self._checkpoints.forget_after(max(whole, default=0))

    def keep_checkpoints(self) -> None:
        """The latest, and the best by validation (by mean score where there is none). One whose figures are still to
        come takes the place of none: it may never get them."""
        keep = self._config.checkpoints
        scores = checkpoint_scores(self._places.folder.metrics, validated=bool(self._config.validation.every))
        steps = [step for step in self._checkpoints.complete_steps() if step <= self.done]
        best = sorted((step for step in steps if step in scores), key=lambda step: (scores[step], step), reverse=True)
        stay = {*steps[-keep.keep_last :], *best[: keep.keep_best]}
        for step in steps:
            if step not in stay:
                shutil.rmtree(self._places.folder.checkpoint_of(step), ignore_errors=True)


def move_rollouts(places: VerlPlaces) -> None:
    """What verl has dumped so far, into the run folder."""
    for source in places.rollouts.glob("*.jsonl"):
        places.folder.rollouts.mkdir(exist_ok=True)
        with suppress(OSError):
            os.replace(source, places.folder.rollouts_of(int(source.stem)))


def adopt_figures(folder: RunFolder, metrics: Path) -> None:
    """What verl had logged when its launcher was killed, and nobody had taken over."""
    recorded = recorded_steps(folder.metrics)
    for one in MetricFeed(metrics).new():
        if one.step > max(recorded, default=-1):
            MetricStream(folder.timings).append(one.step, one.timings)
            MetricStream(folder.metrics).append(one.step, one.metrics)
            recorded.add(one.step)
    metrics.unlink(missing_ok=True)


def checkpoint_scores(metrics: Path, *, validated: bool) -> dict[int, float]:
    """By step; a step that was not validated has the score of the validation before it."""
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
