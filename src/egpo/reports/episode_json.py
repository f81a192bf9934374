"""Episodes as JSON inside the page: each turn with its text, calls, results, the user's words, and changes of state.

The turns' texts, joined, are the response's text; a turn has its length there, as JavaScript counts it. Values of other
types than egpo writes are left out: a file may come from anywhere.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from egpo.runs.dump import TurnSpan

MOST_CHARS = 2_000
"""The longest result or message in the page, in characters."""


def encode_episode(episode: Mapping[str, Any], spans: "tuple[TurnSpan, ...]" = ()) -> dict[str, Any]:
    """Return the keys that an episode adds to a response. `spans`: the tokens of the turns, if they are known."""
    turns = [_mapping(turn) for turn in _list(episode.get("turns"))]
    placed = spans if len(spans) == len(turns) else (None,) * len(turns)
    return {
        "text": "".join(_text(turn.get("text")) for turn in turns),
        "ending": _text(episode.get("ending")),
        "fault": _shown(episode.get("fault", "")),
        "faults": {_text(name): count for name, count in _mapping(episode.get("reasons")).items()},
        "turns": [_encode_turn(turn, span) for turn, span in zip(turns, placed, strict=True)],
    }


def _encode_turn(turn: Mapping[str, Any], span: TurnSpan | None) -> dict[str, Any]:
    """Return a turn without its empty parts: calls `[name, arguments, result, fault]`, messages `[role, content]`, and
    changes `[path, before, after]`."""
    found = {
        "length": utf16_length(_text(turn.get("text"))),
        "tokens": None if span is None else [span.start, span.end],
        "entropy": {} if span is None else {name: float(f"{value:.4g}") for name, value in span.entropy.items()},
        "cut": bool(turn.get("cut_off")),
        "fault": _text(turn.get("fault")),
        "calls": [_encode_call(_mapping(call)) for call in _list(turn.get("calls"))],
        "messages": list(_messages(turn)),
        "changes": [
            [_text(path), *(_shown(value) for value in pair)]
            for path, pair in _mapping(turn.get("changes")).items()
            if isinstance(pair, list | tuple) and len(pair) == 2
        ],
    }
    return {name: value for name, value in found.items() if value or name == "length"}


def _encode_call(call: Mapping[str, Any]) -> list[str]:
    fault = _text(call.get("fault"))
    return [_text(call.get("name")), _shown(call.get("arguments", {})), _shown(call.get("result", "")), fault]


def _messages(turn: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield what was said after a turn, but for the results of its calls, which are shown with them."""
    for message in map(_mapping, _list(turn.get("messages"))):
        if message.get("role") != "tool" or not turn.get("calls"):
            yield [_text(message.get("role")), _shown(message.get("content", ""))]


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= MOST_CHARS else f"{text[:MOST_CHARS]}… [{len(text) - MOST_CHARS:,} more characters]"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def utf16_length(text: str) -> int:
    """Return the length as JavaScript counts it: characters above U+FFFF count twice."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2
