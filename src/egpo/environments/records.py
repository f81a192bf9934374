"""What is stored of an episode: its turns, calls, results, changes of state, verdict, and the reasons of its faults.

Every record is a frozen dataclass of JSON values: `record.to_json()` is one line of a file, `EpisodeRecord.from_json`
reads it back.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from egpo.errors import EgpoError, InputError
from egpo.rewards.verdict import Verdict
from egpo.tags import THINK_TAGS

Message = dict[str, Any]
MOST_CHANGES, MOST_CHANGE_CHARS = 64, 400


@dataclass(frozen=True)
class CallRecord:
    """One call of a tool. `result` is the content of the tool message; `fault` is "" or the reason why it failed.

    `raised` has the type and the place of an exception that the tool raised.
    """

    name: str
    arguments: Mapping[str, Any]
    result: str
    fault: str = ""
    raised: str = ""


@dataclass(frozen=True)
class TurnRecord:
    """One turn of the assistant, and what followed it.

    `fault` is the reason why no call of the text could be run (a broken call, a text that was cut off), else "".
    `messages` were appended after the text: tool results, or the user's next words. `changes` maps a path in the state
    to its values before and after.
    """

    text: str
    cut_off: bool = False
    opened: bool = False
    fault: str = ""
    calls: tuple[CallRecord, ...] = ()
    messages: tuple[Message, ...] = ()
    changes: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)

    @property
    def user(self) -> str | None:
        """What the user said after this turn; None if nothing."""
        return next((str(m["content"]) for m in self.messages if m["role"] == "user"), None)


@dataclass(frozen=True)
class EpisodeRecord:
    """One episode. `ending` is a name in `egpo.environments.episodes.ENDINGS`; `reasons` counts the faults by name.

    `limits` are the fields of `EpisodeLimits`; `reward` is the reward function that gave the verdict, if any.
    """

    environment: str
    settings: Mapping[str, Any]
    row: Mapping[str, Any]
    limits: Mapping[str, Any]
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...]
    turns: tuple[TurnRecord, ...]
    ending: str
    verdict: Verdict
    reasons: Mapping[str, int]
    deterministic: bool = True
    reward: str | None = None
    fault: str = ""
    tags: tuple[str, str] = THINK_TAGS

    def to_json(self) -> str:
        text = json.dumps(asdict(self), ensure_ascii=False, default=str)
        # A lone surrogate in a text could not be written to a file: it stays an escape.
        return text if text.isascii() or _is_writable(text) else json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> "EpisodeRecord":
        """Read a record. InputError if the text is not one."""
        try:
            value = json.loads(text)
            turns = tuple(_turn(turn) for turn in value.pop("turns"))
            lists = {name: tuple(value.pop(name)) for name in ("messages", "tools", "tags")}
            return cls(**value | lists | {"turns": turns, "verdict": Verdict(**value["verdict"])})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            what = f"this is not the record of an episode ({type(error).__name__}: {error})"
            raise InputError(what, where="episode", fix="give a line that egpo wrote for an episode") from error

    def transcript(self) -> list[Message]:
        """Return the whole conversation as chat messages; the content of the assistant's is the text as sampled."""
        return [*self.messages, *transcript_of(self.turns)]


def _is_writable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def transcript_of(turns: Sequence[TurnRecord]) -> list[Message]:
    """Return the messages of the turns: each text of the assistant, followed by what was appended to it."""
    return [
        message
        for turn in turns
        for message in ({"role": "assistant", "content": turn.text}, *(dict(one) for one in turn.messages))
    ]


def turn_from(value: Mapping[str, Any]) -> TurnRecord:
    return _turn(value)


def _turn(value: Mapping[str, Any]) -> TurnRecord:
    calls = tuple(CallRecord(**call) for call in value["calls"])
    changes = {path: (pair[0], pair[1]) for path, pair in value["changes"].items()}
    return TurnRecord(**{**value, "calls": calls, "messages": tuple(value["messages"]), "changes": changes})


def changes_of(before: Any, after: Any, most: int = MOST_CHANGES) -> dict[str, tuple[Any, Any]]:
    """Return the leaves in which two states differ, by their paths; at most `most` of them, long values cut."""
    found: dict[str, tuple[Any, Any]] = {}
    _compare(before, after, "", found, most)
    return found


def _compare(before: Any, after: Any, path: str, found: dict[str, tuple[Any, Any]], most: int) -> None:
    if before == after or len(found) >= most:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        for key in [*before, *(key for key in after if key not in before)]:
            _compare(before.get(key), after.get(key), f"{path}.{key}" if path else str(key), found, most)
    else:
        found[path] = (_shown(before), _shown(after))


def _shown(value: Any) -> Any:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return value if len(text) <= MOST_CHANGE_CHARS else text[:MOST_CHANGE_CHARS] + "…"


def episode_verdicts(records: Sequence[EpisodeRecord]) -> tuple[Verdict, ...]:
    """Return the verdicts of episodes. EgpoError if the environment failed in all of them."""
    verdicts = tuple(record.verdict for record in records)
    if verdicts and all(verdict.failed for verdict in verdicts):
        first = records[0]
        what = f"the environment failed in all {len(records)} episodes ({first.fault:.300})"
        raise EgpoError(what, where=f"environment {first.environment}", fix="fix it, or the task's settings")
    return verdicts
