"""The audit of rewards, which judges stored rollouts again and lists the responses on which two rewards differ.

A rollout file has JSON lines, written by egpo or verl, or parquet rows with responses. It is read one record at a time.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from egpo.config.includes import read_layers
from egpo.data.readers import Record, read_records
from egpo.errors import EgpoError, InputError
from egpo.rewards.batch import count_workers, placed, score_stream
from egpo.rewards.named import Sample, read_sample, scorer_named
from egpo.rewards.plain_values import finite, first_present
from egpo.rewards.scoring import DATA_SOURCES, REWARDS, check_settings
from egpo.rewards.verdict import Verdict
from egpo.tasks import load_task
from egpo.tasks.dataset import NAME as DATASET

ROLLOUT_FOLDERS = ("rollouts", "validations")
STORED_REWARD_KEYS = ("reward", "score")
STORED_CORRECT_KEYS = ("correct", "acc")


@dataclass(frozen=True)
class Rollout:
    """A stored response, its place in the file, and the verdict stored with it, if any.

    `is_episode`: its environment judged it, and no reward can.
    """

    where: str
    sample: Sample
    stored: Verdict | None
    is_episode: bool = False


@dataclass(frozen=True)
class RunMode:
    """The mode of a run's reward, and the config file that sets it."""

    mode: str
    config: Path


def mode_of_run(path: Path) -> RunMode | None:
    """Return the mode of the reward in the run that wrote this file. None if the file is not in a run folder, if the
    task of the run has no modes, or if the task is a user's own.

    Rollouts are in `rollouts/` of a run folder; verl's own dumps are in `verl/rollouts/` and `verl/validations/`.
    """
    folders = [folder for folder in path.absolute().parents[1:3] if (folder / "config.yaml").is_file()]
    if path.absolute().parent.name not in ROLLOUT_FOLDERS or not folders:
        return None
    config = folders[0] / "config.yaml"
    task = read_layers(config, "config of the run").value.get("task") or {}
    name, settings = task.get("name"), task.get("settings") or {}
    if name == DATASET:
        _, _, own_mode = str(settings.get("reward")).partition("@")
        return RunMode(own_mode, config) if own_mode else None
    if not isinstance(name, str) or ":" in name:
        return None
    # Only the mode is passed to the task: other settings may name files that were moved since the run.
    mode = getattr(load_task(name, **{key: settings[key] for key in settings if key == "mode"}), "mode", None)
    return None if mode is None else RunMode(mode, config)


def read_rollouts(path: Path) -> Iterator[Rollout]:
    """Yield every rollout of a file. InputError, with the place in the file, on a record without a response or a
    ground truth."""
    for record in read_records(path):
        for value, where in _unfolded(record):
            is_episode = bool(value.get("episode"))
            yield Rollout(where, read_sample(value, where), stored_verdict(value, where), is_episode)


def _unfolded(record: Record) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Yield one record per response, with its place: verl's generation writes all responses to a prompt in one record,
    as the list `responses`."""
    many = record.value.get("responses")
    if not isinstance(many, list) or "response" in record.value:
        yield record.value, record.where
        return
    for number, response in enumerate(many):
        yield {**record.value, "response": response}, f"{record.where}, response {number}"


def stored_verdict(record: Mapping[str, Any], where: str) -> Verdict | None:
    """Return the verdict that is stored in a record, or None if it has no reward.

    If the record does not say whether the response is correct, a reward of 1 or more counts as correct.
    """
    reward = first_present(record, STORED_REWARD_KEYS)
    if reward is None:
        return None
    if not isinstance(reward, int | float):
        what = f"the stored reward {reward!r:.80} is not a number"
        raise InputError(what, where=where, fix="store a number under `reward` or `score`")
    correct = first_present(record, STORED_CORRECT_KEYS)
    right = reward >= 1 if correct is None else bool(correct)
    reason = str(first_present(record, ("reason",)) or "stored")
    number = finite(reward)
    if number is None or first_present(record, ("failed",)):
        return Verdict(number or 0.0, False, reason, failed=True)
    return Verdict(number, right, reason)


STORED = "stored"
_TOLERANCE = 1e-6
"""The largest difference between two rewards that is ignored: stored rewards were rounded to float32."""


@dataclass
class Tally:
    """Counts of verdicts. Accuracy and mean reward are over the responses that could be judged; NaN if there are
    none."""

    rows: int = 0
    failed: int = 0
    correct: int = 0
    total_reward: float = 0.0
    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, verdict: Verdict) -> None:
        self.rows += 1
        self.reasons[verdict.reason] += 1
        if verdict.failed:
            self.failed += 1
        else:
            self.correct += verdict.correct
            self.total_reward += verdict.reward

    @property
    def judged(self) -> int:
        return self.rows - self.failed

    @property
    def accuracy(self) -> float:
        return self.correct / self.judged if self.judged else float("nan")

    @property
    def mean_reward(self) -> float:
        return self.total_reward / self.judged if self.judged else float("nan")


@dataclass(frozen=True)
class Difference:
    """A response on which two rewards differ: in reward, in correctness, or in whether they could judge it."""

    index: int
    where: str
    ours: Verdict
    theirs: Verdict
    response: str


@dataclass
class Audit:
    """The result of an audit. `ours` and `theirs` count the verdicts of the first and the second reward; `sources`
    counts those of the first by data source. `differences` holds the first of the `num_different` responses on which
    the two differ. `run_mode` is the mode of the run's reward, if the rollouts are in a run folder."""

    ours: Tally = field(default_factory=Tally)
    theirs: Tally | None = None
    sources: dict[str, Tally] = field(default_factory=dict)
    num_different: int = 0
    differences: list[Difference] = field(default_factory=list)
    run_mode: RunMode | None = None


def audit_rewards(
    path: Path,
    *,
    reward: str | None = None,
    against: str | None = None,
    workers: int | None = None,
    limit: int | None = None,
    keep: int = 20,
    watch: Callable[[Iterable[Rollout]], Iterable[Rollout]] = iter,
) -> Audit:
    """Judge every rollout of a file again. Memory holds only counts and the first `keep` differences.

    `reward` and `against` are names in the form of `egpo.rewards.named`; None is the reward of each row's data source,
    and "stored" is the verdict in the file. A built-in reward that is named without a mode is used in the mode of the
    run, if the file is in a run folder. `limit` is the maximum number of responses. `watch` wraps the stream of
    rollouts, for example to show a progress bar.
    """
    _require_known(reward, against)
    rollouts = islice(watch(read_rollouts(path)), limit)
    run_mode = mode_of_run(path)
    audit = Audit(theirs=Tally() if against else None, run_mode=run_mode)
    if run_mode is not None:
        reward = _in_mode(reward, run_mode.mode)
        against = against and _in_mode(against, run_mode.mode)
    for index, judged in enumerate(_judged(rollouts, reward, against, count_workers(workers))):
        audit.ours.add(judged.ours)
        audit.sources.setdefault(judged.rollout.sample.data_source, Tally()).add(judged.ours)
        if audit.theirs is not None and judged.theirs is not None:
            audit.theirs.add(judged.theirs)
            _note_difference(audit, index, judged, judged.theirs, keep)
    if not audit.ours.rows:
        raise InputError("the file contains no response", where=str(path), fix="give a file with at least one response")
    return audit


def _require_known(*specs: str | None) -> None:
    """Raise InputError on an unknown built-in reward or mode, before the file is read. A user's reward is not checked
    here, since importing it may be slow."""
    for spec in specs:
        if spec is None or spec == STORED or ":" in spec:
            continue
        scorer_named(spec)
        name, _, mode = spec.partition("@")
        if mode:
            kinds = [REWARDS[DATA_SOURCES.get(name, name)]] if name else list(REWARDS.values())
            check_settings({"mode": mode}, kinds, where=f"reward {spec}")


def _in_mode(spec: str | None, mode: str) -> str | None:
    """Return the reward's name with the run's mode added, if the name has no mode and the reward has that mode."""
    if spec is None:
        return f"@{mode}"
    if spec == STORED or "@" in spec or ":" in spec:
        return spec
    return f"{spec}@{mode}" if REWARDS[DATA_SOURCES.get(spec, spec)].takes("mode", mode) else spec


@dataclass(frozen=True)
class _Judged:
    rollout: Rollout
    ours: Verdict
    theirs: Verdict | None


def _judged(rollouts: Iterable[Rollout], reward: str | None, against: str | None, workers: int) -> Iterator[_Judged]:
    """Yield each rollout with its verdicts. An error in judging a row is raised with the row's place."""
    wanted = [reward, against] if against else [reward]
    names = [name for name in wanted if name != STORED]
    under_way: deque[Rollout] = deque()
    samples = _samples(rollouts, under_way, by_source=any(name is None or name.startswith("@") for name in names))
    for outcome in score_stream(samples, rewards=names, workers=workers if names else 0):
        rollout = under_way.popleft()
        if isinstance(outcome, EgpoError):
            raise placed(outcome, rollout.where) from outcome
        scored = iter(outcome)
        verdicts = [_stored(rollout) if name == STORED else next(scored) for name in wanted]
        yield _Judged(rollout, verdicts[0], verdicts[1] if against else None)


def _samples(rollouts: Iterable[Rollout], under_way: deque[Rollout], *, by_source: bool) -> Iterator[Sample]:
    for rollout in rollouts:
        if by_source and rollout.is_episode:
            what = "the record is an episode, which only its environment can judge"
            raise InputError(what, where=rollout.where, fix="play it again: egpo audit episodes FILE")
        if by_source and not rollout.sample.data_source:
            what = "the record has no `data_source`, which chooses the reward"
            raise InputError(what, where=rollout.where, fix="choose the reward with --reward NAME")
        under_way.append(rollout)
        yield rollout.sample


def _stored(rollout: Rollout) -> Verdict:
    if rollout.stored is None:
        fix = f"`{STORED}` needs `reward` or `score` in every record"
        raise InputError("the record has no stored reward", where=rollout.where, fix=fix)
    return rollout.stored


def _note_difference(audit: Audit, index: int, judged: _Judged, theirs: Verdict, keep: int) -> None:
    ours = judged.ours
    same_reward = abs(ours.reward - theirs.reward) <= _TOLERANCE
    if same_reward and (ours.correct, ours.failed) == (theirs.correct, theirs.failed):
        return
    audit.num_different += 1
    if len(audit.differences) < keep:
        audit.differences.append(Difference(index, judged.rollout.where, ours, theirs, judged.rollout.sample.response))
