"""The audit of episodes, which plays stored episodes again and lists those that now end differently.

Episodes are in `rollouts/step_N.jsonl` of a run, and in `evals/<name>.jsonl`. They are read a few at a time.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from egpo.data.readers import read_records
from egpo.environments import ENVIRONMENTS, EnvironmentHost, EpisodeRecord, replay
from egpo.errors import InputError

LEFT_OUT = {
    "not_deterministic": "the environment is not deterministic",
    "failed": "the environment failed when the episode was recorded",
    "cut": "the record was cut when it was stored, because it is very long",
    "not_named": "the environment is not one of the package; name it with --environment to run its code",
}
"""Why episodes are not played again: name -> meaning."""
_FOLDERS = ("rollouts", "evals")
_AT_ONCE = 64


@dataclass(frozen=True)
class DifferentEpisode:
    """An episode that does not play as it was recorded: its place, its environment, and what differs."""

    where: str
    environment: str
    differences: tuple[str, ...]


@dataclass
class EpisodeAudit:
    """The result of an audit. `num_same` and `num_different` count the episodes that were played again; `left_out`
    those that were not, by the names in LEFT_OUT. `not_named`: the outside environments among them. `num_single` counts
    records without an episode. `different` holds the first episodes that differ."""

    environments: Counter[str] = field(default_factory=Counter)
    num_same: int = 0
    num_different: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    not_named: set[str] = field(default_factory=set)
    num_single: int = 0
    different: list[DifferentEpisode] = field(default_factory=list)

    @property
    def num_episodes(self) -> int:
        return self.num_same + self.num_different + self.left_out.total()


@dataclass(frozen=True)
class _Stored:
    """The record of an episode, or why it is left out."""

    where: str
    environment: str
    record: EpisodeRecord | None
    left_out: str = ""


def audit_episodes(
    paths: Sequence[Path],
    *,
    environments: Sequence[str] = (),
    limit: int | None = None,
    keep: int = 20,
    watch: Callable[[Iterable[Any]], Iterable[Any]] = iter,
) -> EpisodeAudit:
    """Play the episodes of these files and run folders again, at most `limit` of them.

    A record may name any code as its environment: that of an outside class runs only if `environments` has its name.
    The first `keep` episodes that differ are listed. InputError if there is no episode.
    """
    audit, named = EpisodeAudit(), {*ENVIRONMENTS, *environments}
    stored = islice(watch(_stored(paths, named, audit)), limit)
    with ExitStack() as stack, ThreadPoolExecutor() as threads:
        hosts: dict[str, EnvironmentHost] = {}
        while batch := list(islice(stored, _AT_ONCE)):
            for one in batch:
                audit.environments[one.environment] += 1
                if one.left_out:
                    audit.left_out[one.left_out] += 1
            played = [one for one in batch if one.record is not None]
            for one in played:
                _open_host(one, hosts, stack)
            found = threads.map(lambda one: _differences(one, hosts), played)
            for one, differences in zip(played, found, strict=True):
                _note(audit, one, differences, keep)
    if not audit.num_episodes:
        fix = "give a file of `rollouts/` or `evals/`, or the folder of a run, of a task with an environment"
        raise InputError("there are no episodes", where=", ".join(map(str, paths)), fix=fix)
    return audit


def _stored(paths: Sequence[Path], named: set[str], audit: EpisodeAudit) -> Iterator[_Stored]:
    for path in paths:
        for file in _files(path):
            for record in read_records(file):
                value = record.value.get("episode")
                if value is None:
                    audit.num_single += 1
                    continue
                yield _read(value, record.where, named, audit)


def _files(path: Path) -> list[Path]:
    """Return the files with responses of a run folder, or of a folder of them; a file is returned as it is."""
    if not path.is_dir():
        return [path]
    inner = [path / name for name in _FOLDERS if (path / name).is_dir()] or [path]
    found = [file for folder in inner for file in sorted(folder.glob("*.jsonl"), key=_by_number)]
    # `server_answers.jsonl` has single answers of a server.
    return [file for file in found if file.stat().st_size and file.name != "server_answers.jsonl"]


def _by_number(file: Path) -> tuple[int, str]:
    number = file.stem.rpartition("_")[2]
    return (int(number) if number.isdecimal() else 0, file.name)


def _read(value: Any, where: str, named: set[str], audit: EpisodeAudit) -> _Stored:
    if not isinstance(value, Mapping) or not isinstance(value.get("environment"), str):
        fix = "give a file that egpo wrote"
        raise InputError("`episode` is not the stored record of an episode", where=where, fix=fix)
    environment = str(value["environment"])
    if value.get("cut"):
        return _Stored(where, environment, None, "cut")
    try:
        record = EpisodeRecord.from_stored(value)
    except InputError as error:
        raise InputError(str(error), where=where) from error
    outside = {name for name in (environment, record.reward) if name and name not in named}
    if not record.deterministic:
        return _Stored(where, environment, None, "not_deterministic")
    if record.ending == "failed" or record.verdict.failed:
        return _Stored(where, environment, None, "failed")
    if outside:
        audit.not_named |= outside
        return _Stored(where, environment, None, "not_named")
    return _Stored(where, environment, record)


def _key(record: EpisodeRecord | None) -> str:
    assert record is not None
    return json.dumps([record.environment, dict(record.settings), record.reward], sort_keys=True)


def _open_host(one: _Stored, hosts: dict[str, EnvironmentHost], stack: ExitStack) -> None:
    assert one.record is not None
    if _key(one.record) in hosts:
        return
    try:
        host = EnvironmentHost(one.record.environment, one.record.settings, reward=one.record.reward)
    except InputError as error:
        raise InputError(str(error), where=one.where) from error
    hosts[_key(one.record)] = stack.enter_context(host)


def _differences(one: _Stored, hosts: Mapping[str, EnvironmentHost]) -> tuple[str, ...]:
    assert one.record is not None
    try:
        return replay(one.record, hosts[_key(one.record)]).differences
    except InputError as error:
        raise InputError(str(error), where=one.where) from error
    except (TypeError, ValueError, KeyError, AttributeError) as error:  # values of other types than egpo writes
        what = f"the record of the episode is broken ({type(error).__name__}: {error})"
        raise InputError(what, where=one.where, fix="give a file that egpo wrote") from error


def _note(audit: EpisodeAudit, one: _Stored, differences: tuple[str, ...], keep: int) -> None:
    if not differences:
        audit.num_same += 1
        return
    audit.num_different += 1
    if len(audit.different) < keep:
        audit.different.append(DifferentEpisode(one.where, one.environment, differences))
