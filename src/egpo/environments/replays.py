"""Replays: a recorded episode, played again with its recorded texts in a new instance of its environment."""

from dataclasses import asdict, dataclass

from egpo.environments.episodes import Episode, EpisodeLimits
from egpo.environments.hosts import EnvironmentHost
from egpo.environments.records import EpisodeRecord, plain_json
from egpo.errors import InputError


@dataclass(frozen=True)
class Replay:
    """An episode that was played again from its record, and where it differs from the record."""

    record: EpisodeRecord
    differences: tuple[str, ...]

    @property
    def is_same(self) -> bool:
        return not self.differences


def replay(record: EpisodeRecord, host: EnvironmentHost | None = None) -> Replay:
    """Play a recorded episode again, with the recorded texts, in a new instance of its environment.

    InputError if its environment is not deterministic. Without `host`, one is made from the record.
    """
    if not record.deterministic:
        what = f"episodes of the environment `{record.environment}` cannot be replayed: it is not deterministic"
        raise InputError(what, where="episode", fix="leave these episodes out of the audit")
    if host is None:
        with EnvironmentHost(record.environment, record.settings, reward=record.reward, num_workers=1) as own:
            return replay(record, own)
    episode = Episode(host, record.row, EpisodeLimits(**record.limits), tags=record.tags)
    episode.start()
    for turn in record.turns:
        if episode.ending:
            break
        episode.assistant(turn.text, turn.cut_off, opened=turn.opened)
    if not episode.ending:
        episode.stop(record.ending if record.ending in ("token_limit", "stopped") else "stopped")
    again = episode.record()
    return Replay(again, tuple(_differences(record, again)))


def _differences(one: EpisodeRecord, other: EpisodeRecord) -> list[str]:
    """Compare two records as they would be read back from a file: tuples are lists there, and NaN equals itself."""
    before, after = plain_json(asdict(one)), plain_json(asdict(other))
    found = [
        f"{name}: {before[name]!r:.200} is now {after[name]!r:.200}"
        for name in ("ending", "verdict", "messages", "reasons")
        if before[name] != after[name]
    ]
    if len(one.turns) != len(other.turns):
        found.append(f"turns: {len(one.turns)} are now {len(other.turns)}")
    for at, (a, b) in enumerate(zip(before["turns"], after["turns"], strict=False)):
        found += [f"turn {at}, {name}: {a[name]!r:.200} is now {b[name]!r:.200}" for name in a if a[name] != b[name]]
    return found
