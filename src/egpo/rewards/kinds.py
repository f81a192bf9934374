"""The rewards by kind, each behind one signature: text, ground truth, and what else the row says."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from egpo.errors import InputError
from egpo.rewards import code, countdown, gsm8k, math, tool_calls
from egpo.rewards.boundary import from_json, is_missing, plain, single, text_of
from egpo.rewards.verdict import Verdict
from egpo.tags import THINK_TAGS, tags_fault

Fields = Mapping[str, Any]


@dataclass(frozen=True)
class Kind:
    """`judge(text, ground_truth, extra_info)`, the reasons that its verdicts may have, and the tags it looks for."""

    judge: Callable[[str, Any, Fields], Verdict]
    reasons: Mapping[str, str]
    tags: tuple[str, ...] = THINK_TAGS


def settings(extra: Fields, *names: str) -> dict[str, Any]:
    """Those of the settings that a row makes itself."""
    made = {name: plain(extra[name]) for name in names if name in extra}
    made = {name: value for name, value in made.items() if not is_missing(value)}
    return {name: _CONVERSIONS[name](value) for name, value in made.items()}


def _mode(value: Any) -> str:
    return text_of(value, "extra_info.mode")


def _tags(value: Any) -> tuple[str, str]:
    """A pair, out of a list or of JSON text."""
    tags = from_json(value, "extra_info.tags") if isinstance(value, str) else value
    is_pair = isinstance(tags, list) and len(tags) == 2 and all(isinstance(tag, str) for tag in tags)
    fault = tags_fault((tags[0], tags[1])) if is_pair else "it takes two texts"
    if fault:
        fix = 'give the opening and the closing tag, as in ["<think>", "</think>"]'
        raise InputError(f"{tags!r:.80} is no pair of tags: {fault}", where="extra_info.tags", fix=fix)
    return tags[0], tags[1]


def _tools(value: Any) -> Any:
    """None for an empty list: nothing is known of the tools, which is not the same as that there are none."""
    return None if value in ("[]", []) else value


_CONVERSIONS: dict[str, Callable[[Any], Any]] = {"mode": _mode, "tags": _tags, "tools": _tools}


def _judge_tool_calls(text: str, ground_truth: Any, extra: Fields) -> Verdict:
    return tool_calls.judge_tool_calls(text, single(ground_truth), **settings(extra, "mode", "tools", "tags"))


def _judge_countdown(text: str, ground_truth: Any, extra: Fields) -> Verdict:
    truth = single(ground_truth)
    puzzle = _puzzle_from_text(truth) if isinstance(truth, str) else _puzzle(truth)
    return countdown.judge_countdown(text, puzzle.numbers, puzzle.target, **settings(extra, "mode", "tags"))


def _judge_gsm8k(text: str, ground_truth: Any, extra: Fields) -> Verdict:
    return gsm8k.judge_gsm8k(text, single(ground_truth), **settings(extra, "mode"))


def _judge_math(text: str, ground_truth: Any, extra: Fields) -> Verdict:
    return math.judge_math(text, single(ground_truth))


def _judge_code(text: str, ground_truth: Any, extra: Fields) -> Verdict:
    return code.judge_code(text, plain(ground_truth), **settings(extra, "mode", "tags"))


KINDS = {
    "tool_calls": Kind(_judge_tool_calls, tool_calls.REASONS, (*THINK_TAGS, "<tool_call>", "</tool_call>")),
    "countdown": Kind(_judge_countdown, countdown.REASONS, (*THINK_TAGS, "<answer>", "</answer>")),
    "gsm8k": Kind(_judge_gsm8k, gsm8k.REASONS),
    "math": Kind(_judge_math, math.REASONS),
    "code": Kind(_judge_code, code.REASONS),
}


@dataclass(frozen=True)
class _Puzzle:
    numbers: tuple[Any, ...]
    target: Any


@lru_cache(maxsize=65536)
def _puzzle_from_text(text: str) -> _Puzzle:
    """Cached: every sample of a group comes with the same text."""
    return _puzzle(from_json(text, "countdown ground truth"))


def _puzzle(truth: Any) -> _Puzzle:
    """{"numbers": [...], "target": ...}; `nums` is the public set's word. A table may have made floats of integers."""
    numbers = truth.get("numbers", truth.get("nums")) if isinstance(truth, Mapping) else None
    if not isinstance(numbers, list) or "target" not in truth:
        fix = 'give {"numbers": [3, 5, 7], "target": 22}, or the JSON text of it'
        raise InputError(f"{truth!r:.80} is no puzzle", where="countdown ground truth", fix=fix)
    return _Puzzle(tuple(map(_whole, numbers)), _whole(truth["target"]))


def _whole(number: Any) -> Any:
    return int(number) if isinstance(number, float) and number.is_integer() else number
