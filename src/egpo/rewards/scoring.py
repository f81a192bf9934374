"""One call for every reward: `score` finds the reward of a row's data source and calls it.

Each reward is a row of `KINDS`: its judge as a function of (text, ground truth, extra_info), its reasons, modes, tags
and settings. `hybrid` chooses between math and code by the row's `ability`. To add a reward, add a row to `KINDS`, and
its data sources to `DATA_SOURCES`; `tasks/gold.py` writes a gold answer from a ground truth.

`require_visible_tags` checks before a run that the tags of a reward survive decoding: engines decode with
`skip_special_tokens=True` before they call a reward, which removes a tag that is a *special* token of the tokenizer.
(Qwen's tags are added tokens and not special.)
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from egpo.errors import InputError, nearest
from egpo.rewards import code, countdown, gsm8k, math, tool_calls
from egpo.rewards.plain_values import fields_of, from_json, is_missing, plain, single, text_of
from egpo.rewards.verdict import Verdict
from egpo.tags import THINK_TAGS, tags_fault

Fields = Mapping[str, Any]


@dataclass(frozen=True)
class Kind:
    """One reward: `judge(text, ground_truth, extra_info)`, the reasons of its verdicts with their meanings, its modes,
    the tags that it looks for, and the settings that it takes from `extra_info`."""

    judge: Callable[[str, Any, Fields], Verdict]
    reasons: Mapping[str, str]
    modes: tuple[str, ...] = ()
    tags: tuple[str, ...] = THINK_TAGS
    settings: tuple[str, ...] = ("mode", "tags")

    def takes(self, setting: str, value: Any) -> bool:
        """Return whether this reward has the setting and, if the setting is `mode`, the mode `value`."""
        return setting in self.settings and (setting != "mode" or _mode(plain(value)) in self.modes)


SETTINGS = ("mode", "tags", "tools")
"""The settings that at least one reward takes. Any other key of `extra_info` is ignored."""


def check_settings(made: Mapping[str, Any], kinds: Collection[Kind], where: str) -> None:
    """Raise InputError on a setting, or a mode, that none of these rewards takes."""
    known = [name for name in SETTINGS if any(name in kind.settings for kind in kinds)]
    for name, value in made.items():
        if name not in known:
            raise InputError(f"unknown setting `{name}`", where=where, fix=nearest(name, known))
        converted = _CONVERSIONS[name](plain(value))
        if name == "mode" and not any(kind.takes("mode", converted) for kind in kinds):
            modes = sorted({mode for kind in kinds for mode in kind.modes})
            raise InputError(f"unknown mode `{converted}`", where=where, fix=nearest(converted, modes))


def settings(extra: Fields, *names: str) -> dict[str, Any]:
    """Return those of the settings `names` that `extra_info` has, converted to the types that rewards take."""
    made = {name: plain(extra[name]) for name in names if name in extra}
    made = {name: value for name, value in made.items() if not is_missing(value)}
    return {name: _CONVERSIONS[name](value) for name, value in made.items()}


def _mode(value: Any) -> str:
    return text_of(value, "extra_info.mode")


def _tags(value: Any) -> tuple[str, str]:
    """Return a pair of tags from a list or from JSON text."""
    tags = from_json(value, "extra_info.tags") if isinstance(value, str) else value
    is_pair = isinstance(tags, list) and len(tags) == 2 and all(isinstance(tag, str) for tag in tags)
    fault = tags_fault((tags[0], tags[1])) if is_pair else "two texts are needed"
    if fault:
        fix = 'give the opening and the closing tag, as in ["<think>", "</think>"]'
        raise InputError(f"{tags!r:.80} is not a pair of tags: {fault}", where="extra_info.tags", fix=fix)
    return tags[0], tags[1]


def _tools(value: Any) -> Any:
    """Return the tools; None for an empty list, which means that the tools are unknown and not that there are none."""
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
    """Return the puzzle in a JSON text. Cached: all samples of a group have the same text."""
    return _puzzle(from_json(text, "countdown ground truth"))


def _puzzle(truth: Any) -> _Puzzle:
    """Read `{"numbers": [...], "target": ...}` (`nums` in the public dataset). Integers may be stored as floats."""
    numbers = truth.get("numbers", truth.get("nums")) if isinstance(truth, Mapping) else None
    if not isinstance(numbers, list) or "target" not in truth:
        fix = 'give {"numbers": [3, 5, 7], "target": 22}, or the JSON text of it'
        raise InputError(f"{truth!r:.80} is not a puzzle", where="countdown ground truth", fix=fix)
    return _Puzzle(tuple(map(_whole, numbers)), _whole(truth["target"]))


def _whole(number: Any) -> Any:
    return int(number) if isinstance(number, float) and number.is_integer() else number


ABILITIES = ("math", "code")


def hybrid(text: str, ground_truth: Any, extra_info: Fields) -> Verdict:
    """Judge a response of a mixed dataset with the math or the code reward, as `extra_info["ability"]` says.

    A row's column `ability` takes precedence over that value: callers that have the column copy it there first.
    """
    kind = KINDS[ability_of(extra_info)]
    return kind.judge(text, ground_truth, _meant_for(kind, extra_info))


def _meant_for(kind: Kind, extra_info: Fields) -> Fields:
    """Return `extra_info` without a `mode` that only the reward of the other ability has: in a mixed dataset one mode
    is set for all rows."""
    mode = extra_info.get("mode")
    if is_missing(plain(mode)) or kind.takes("mode", mode) or not HYBRID.takes("mode", mode):
        return extra_info
    return {name: value for name, value in extra_info.items() if name != "mode"}


def ability_of(extra_info: Fields) -> str:
    """Return the ability of a row, "math" or "code". Upper case is accepted: public datasets write MATH."""
    stated = extra_info.get("ability")
    if is_missing(plain(stated)) or plain(stated) == "":
        fix = "give each row an `ability` of `math` or `code`, as a column or in `extra_info`"
        raise InputError("the row has no `ability`", where="hybrid reward", fix=fix)
    ability = text_of(stated, "ability").strip().lower()
    if ability not in ABILITIES:
        raise InputError(f"unknown ability `{ability}`", where="hybrid reward", fix=nearest(ability, ABILITIES))
    return ability


def _reasons() -> dict[str, str]:
    """Return the verdict reasons of math and code with their explanations. A reason of both has both explanations."""
    first, second = (KINDS[ability].reasons for ability in ABILITIES)
    shared = {name: f"math: {first[name]}; code: {second[name]}" for name in first if name in second}
    return {**first, **second, **shared}


HYBRID = Kind(hybrid, _reasons(), tuple(dict.fromkeys(mode for name in ABILITIES for mode in KINDS[name].modes)))


REWARDS: dict[str, Kind] = {**KINDS, "hybrid": HYBRID}

DATA_SOURCES: dict[str, str] = {
    "function_calling": "tool_calls",
    "bfcl": "tool_calls",
    "xlam-function-calling": "tool_calls",
    "open_agentic_tool_use": "tool_calls",
    "hardgen": "tool_calls",
    "countdown": "countdown",
    "gsm8k": "gsm8k",
    "openai/gsm8k": "gsm8k",
    "math": "math",
    "math_dapo": "math",
    "lighteval/MATH": "math",
    "DigitalLearningGmbH/MATH-lighteval": "math",
    "HuggingFaceH4/MATH-500": "math",
    "code": "code",
    "apps": "code",
    "codecontests": "code",
    "codeforces": "code",
    "taco": "code",
    "mixed": "hybrid",
}


def score(data_source: Any, solution_str: Any, ground_truth: Any, extra_info: Any = None) -> Verdict:
    """Return the verdict on a response, by the reward of its data source.

    `extra_info` may set `mode` and `tags`, `tools` for tool calls, and has `ability` in a mixed dataset. Values may be
    numpy, torch, bytes or JSON text. The text of a response never causes an exception. A ground truth that cannot be
    used, an unknown data source or an unknown setting raises InputError.
    """
    kind = kind_of(data_source)
    return kind.judge(text_of(solution_str, "solution_str"), ground_truth, fields_of(extra_info, "extra_info"))


def kind_of(data_source: Any) -> Kind:
    """Return the reward of a data source; InputError if it is unknown."""
    return REWARDS[reward_name(data_source)]


def reward_name(data_source: Any) -> str:
    name = text_of(data_source, "data_source")
    if name not in DATA_SOURCES:
        raise InputError(f"unknown data source `{name}`", where="rewards", fix=nearest(name, DATA_SOURCES))
    return DATA_SOURCES[name]


def reasons_of(data_source: str) -> Mapping[str, str]:
    """Return every reason that a verdict on this data source may have, with its meaning."""
    return kind_of(data_source).reasons


def vanishing_tags(tokenizer: Any, tags: Sequence[str]) -> list[str]:
    """Return the tags that are lost when an engine decodes a model's tokens to the text for a reward."""
    return [tag for tag in tags if tag not in _as_engines_decode(tokenizer, tag)]


def require_visible_tags(tokenizer: Any, data_source: str, tags: Sequence[str] = ()) -> None:
    """Raise InputError if decoding would remove a tag that the reward of `data_source` needs.

    `tags`: the thinking tags that the rows set; empty if they use those of the reward.
    """
    needed = kind_of(data_source).tags
    lost = vanishing_tags(tokenizer, (*tags, *needed[2:]) if tags else needed)
    if lost:
        raise InputError(
            f"{', '.join(f'`{tag}`' for tag in lost)} is a special token, which is removed before scoring",
            where=f"tokenizer, data source {data_source}",
            fix="add the tag as an ordinary token (special=False in added_tokens_decoder), or use other tags",
        )


def _as_engines_decode(tokenizer: Any, tag: str) -> str:
    ids = tokenizer.encode(f"a {tag} b", add_special_tokens=False)
    return str(tokenizer.decode(ids, skip_special_tokens=True))
