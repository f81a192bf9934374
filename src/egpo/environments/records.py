"""What is stored of an episode: its turns, calls, results, changes of state, verdict, and the reasons of its faults.

Every record is a frozen dataclass of JSON values: `record.to_json()` is one line of a file, `EpisodeRecord.from_json`
reads it back. `record.stored()` is the compact form in files of rollouts and evaluations; `from_stored` reads it.
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
MOST_STORED_CHARS = 200_000
"""The largest stored form of an episode, in characters of JSON, besides the texts that the model wrote."""
_CUT_CHARS = 400


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

    def stored(self, most_chars: int = MOST_STORED_CHARS) -> dict[str, Any]:
        """Return the compact form, of JSON values: without the tools, and without what follows from other values.

        If it is longer than `most_chars`, long results and values are cut, and `cut` is true: such an episode can be
        read, and not be replayed.
        """
        value: dict[str, Any] = plain_json(asdict(self))
        del value["tools"]
        value["turns"] = [_stored_turn(turn) for turn in value["turns"]]
        if value["messages"] == value["row"].get("prompt"):
            del value["messages"]
        value = {name: one for name, one in value.items() if one or name in ("row", "turns", "verdict")}
        size = len(json.dumps(value)) - sum(len(json.dumps(turn.text)) for turn in self.turns)
        return value if size <= most_chars else _cut_down(value, most_chars)

    @classmethod
    def from_stored(cls, value: Any) -> "EpisodeRecord":
        """Read the compact form. InputError if this is not one, or one that was cut."""
        try:
            if value.get("cut"):
                what = "the record was cut when it was stored, because it is very long"
                raise InputError(what, where="episode", fix="leave this episode out")
            absent = {"settings": {}, "limits": {}, "reasons": {}, "ending": "", "deterministic": False, "tools": []}
            messages = value["row"].get("prompt") or []
            whole = {**absent, "messages": messages, **value}
            return cls.from_json(json.dumps({**whole, "turns": [_whole_turn(turn) for turn in whole["turns"]]}))
        except (TypeError, KeyError, AttributeError) as error:
            what = f"this is not the stored record of an episode ({type(error).__name__}: {error})"
            raise InputError(what, where="episode", fix="give a file that egpo wrote") from error

    def transcript(self) -> list[Message]:
        """Return the whole conversation as chat messages; the content of the assistant's is the text as sampled."""
        return [*self.messages, *transcript_of(self.turns)]


def plain_json(value: Any) -> Any:
    """Return a value as it would be read back from a file: JSON values only, NaN and other objects as text."""
    return json.loads(json.dumps(value, default=str), parse_constant=str)


def _stored_turn(turn: Mapping[str, Any]) -> dict[str, Any]:
    """Return a turn without its empty fields, and without the messages that only repeat the results of its calls."""
    messages = [{"role": "tool", "name": call["name"], "content": call["result"]} for call in turn["calls"]]
    calls = [{name: one for name, one in call.items() if one or name == "arguments"} for call in turn["calls"]]
    kept = {**turn, "calls": calls, "messages": [] if turn["messages"] == messages else turn["messages"]}
    return {name: one for name, one in kept.items() if one or name == "text"}


def _whole_turn(turn: Mapping[str, Any]) -> dict[str, Any]:
    calls = [{"result": "", **call} for call in turn.get("calls", [])]
    messages = [{"role": "tool", "name": call["name"], "content": call["result"]} for call in calls]
    return {"messages": messages, "changes": {}, **turn, "calls": calls}


def _cut_down(value: Mapping[str, Any], most_chars: int) -> dict[str, Any]:
    """Return a stored record with long values cut; if that is not enough, without row, calls and changes."""
    texts = [turn["text"] for turn in value["turns"]]
    cut = {**_shortened(value), "cut": True}
    if len(json.dumps(cut)) > most_chars:
        kept = ("environment", "ending", "verdict", "reasons", "deterministic", "fault")
        cut = {name: cut[name] for name in kept if name in cut} | {"row": {}, "turns": [{} for _ in texts], "cut": True}
    return {**cut, "turns": [{**turn, "text": text} for turn, text in zip(cut["turns"], texts, strict=True)]}


def _shortened(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= _CUT_CHARS else value[:_CUT_CHARS] + "…"
    if isinstance(value, dict):
        return {_shortened(key): _shortened(one) for key, one in value.items()}
    return [_shortened(one) for one in value] if isinstance(value, list) else value


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
