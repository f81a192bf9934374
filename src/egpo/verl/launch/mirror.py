"""A verl run in our run folder, step by step: metrics, health, rollouts, and which checkpoints stay."""

import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from egpo.config import Config
from egpo.runs.folder import RunFolder
from egpo.runs.ledger import Ledger
from egpo.runs.metrics import MetricStream, read_metrics
from egpo.runs.readings import REWARD, validation_accuracy
from egpo.verl.launch.checkpoints import VerlCheckpoints
from egpo.verl.launch.metric_feed import MetricFeed, StepFigures
from egpo.verl.launch.places import VerlPlaces


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
