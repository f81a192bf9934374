"""The rewards by kind, each behind one signature: text, ground truth, and what else the row says."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from egpo.errors import InputError, nearest
from egpo.rewards import code, countdown, gsm8k, math, tool_calls
from egpo.rewards.boundary import from_json, is_missing, plain, single, text_of
from egpo.rewards.verdict import Verdict
from egpo.tags import THINK_TAGS, tags_fault

Fields = Mapping[str, Any]


@dataclass(frozen=True)
class Kind:
    """`judge(text, ground_truth, extra_info)`, the reasons that its verdicts may have, the modes it knows, the tags it
    looks for, and the names of what `extra_info` may set for it."""

    judge: Callable[[str, Any, Fields], Verdict]
    reasons: Mapping[str, str]
    modes: tuple[str, ...] = ()
    tags: tuple[str, ...] = THINK_TAGS
    settings: tuple[str, ...] = ("mode", "tags")

    def takes(self, setting: str, value: Any) -> bool:
        """Whether a setting that was made for several kinds at once is meant for this one."""
        return setting in self.settings and (setting != "mode" or _mode(plain(value)) in self.modes)


SETTINGS = ("mode", "tags", "tools")
"""What some kind or other takes. `extra_info` may hold any other key besides, which no reward looks at."""


def check_settings(made: Mapping[str, Any], kinds: Collection[Kind], where: str) -> None:
    """Refuse a setting, or a mode, that none of these kinds takes."""
    known = [name for name in SETTINGS if any(name in kind.settings for kind in kinds)]
    for name, value in made.items():
        if name not in known:
            raise InputError(f"unknown setting `{name}`", where=where, fix=nearest(name, known))
        converted = _CONVERSIONS[name](plain(value))
        if name == "mode" and not any(kind.takes("mode", converted) for kind in kinds):
            modes = sorted({mode for kind in kinds for mode in kind.modes})
            raise InputError(f"unknown mode `{converted}`", where=where, fix=nearest(converted, modes))


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
    return gsm8k.judge_gsm8k(text, single(ground_truth), **settings(extra, "mode", "tags"))


def _judge_math(text: str, ground_truth: Any, extra: Fields) -> Verdict:
    made = settings(extra, "mode", "tags")
    mode = made.pop("mode", math.MODES[0])
    if mode not in math.MODES:
        raise InputError(f"unknown mode `{mode}`", where="math", fix=nearest(mode, math.MODES))
    return math.judge_math(text, single(ground_truth), **made)


def _judge_code(text: str, ground_truth: Any, extra: Fields) -> Verdict:
    return code.judge_code(text, plain(ground_truth), **settings(extra, "mode", "tags"))


KINDS = {
    "tool_calls": Kind(
        _judge_tool_calls,
        tool_calls.REASONS,
        tool_calls.MODES,
        (*THINK_TAGS, "<tool_call>", "</tool_call>"),
        ("mode", "tags", "tools"),
    ),
    "countdown": Kind(_judge_countdown, countdown.REASONS, countdown.MODES, (*THINK_TAGS, "<answer>", "</answer>")),
    "gsm8k": Kind(_judge_gsm8k, gsm8k.REASONS, gsm8k.MODES),
    "math": Kind(_judge_math, math.REASONS, math.MODES),
    "code": Kind(_judge_code, code.REASONS, code.MODES),
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
