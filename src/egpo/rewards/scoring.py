"""The rewards by kind, each behind one signature: text, ground truth, and what else the row says.

Mixed mathematics and code: the row's `ability` decides which reward it gets.

One call for every reward: the row's `data_source` says which.

Are the tags that a reward looks for still there when it sees the text?

Engines decode with `skip_special_tokens=True` before they call a reward (verl does, and so does ours). A tag that is a
*special* token of the tokenizer has vanished by then, and every answer would look as if it had none. (Qwen's tags are
added tokens and not special.)
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


ABILITIES = ("math", "code")


def hybrid(text: str, ground_truth: Any, extra_info: Fields) -> Verdict:
    """The verdict of the reward that `ability` names. `score` puts a row's own column over that of `extra_info`."""
    kind = KINDS[ability_of(extra_info)]
    return kind.judge(text, ground_truth, _meant_for(kind, extra_info))


def _meant_for(kind: Kind, extra_info: Fields) -> Fields:
    """Without a `mode` that only the other ability knows: one stands for all rows of a mixed set."""
    mode = extra_info.get("mode")
    if is_missing(plain(mode)) or kind.takes("mode", mode) or not HYBRID.takes("mode", mode):
        return extra_info
    return {name: value for name, value in extra_info.items() if name != "mode"}


def ability_of(extra_info: Fields) -> str:
    """ "math" or "code", however it is wrapped and in whatever case (public sets write MATH)."""
    stated = extra_info.get("ability")
    if is_missing(plain(stated)) or plain(stated) == "":
        fix = "give each row an `ability` of `math` or `code`, as a column or in `extra_info`"
        raise InputError("the row does not say its `ability`", where="hybrid reward", fix=fix)
    ability = text_of(stated, "ability").strip().lower()
    if ability not in ABILITIES:
        raise InputError(f"unknown ability `{ability}`", where="hybrid reward", fix=nearest(ability, ABILITIES))
    return ability


def _reasons() -> dict[str, str]:
    """Those of both; one that both have means what it means in each."""
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
    """The verdict on a response, by the reward of its data source.

    `extra_info` may set `mode` and `tags`, `tools` for tool calls, and says `ability` in a mixed set. Values may come
    as numpy, torch, bytes or JSON text. Never raises on what a model wrote; a ground truth that cannot be used, an
    unknown data source or setting is an InputError.
    """
    kind = kind_of(data_source)
    return kind.judge(text_of(solution_str, "solution_str"), ground_truth, fields_of(extra_info, "extra_info"))


def kind_of(data_source: Any) -> Kind:
    """The reward of a data source."""
    return REWARDS[reward_name(data_source)]


def reward_name(data_source: Any) -> str:
    name = text_of(data_source, "data_source")
    if name not in DATA_SOURCES:
        raise InputError(f"unknown data source `{name}`", where="rewards", fix=nearest(name, DATA_SOURCES))
    return DATA_SOURCES[name]


def reasons_of(data_source: str) -> Mapping[str, str]:
    """Every reason that a verdict on this data source may have, with its meaning."""
    return kind_of(data_source).reasons


def vanishing_tags(tokenizer: Any, tags: Sequence[str]) -> list[str]:
    """Those that are lost between a model's tokens and the text that an engine hands to a reward."""
    return [tag for tag in tags if tag not in _as_engines_decode(tokenizer, tag)]


def require_visible_tags(tokenizer: Any, data_source: str, tags: Sequence[str] = ()) -> None:
    """An error before the run starts, where a tag that the reward of `data_source` needs would vanish.

    `tags` are the thinking tags where the rows set their own.
    """
    needed = kind_of(data_source).tags
    lost = vanishing_tags(tokenizer, (*tags, *needed[2:]) if tags else needed)
    if lost:
        raise InputError(
            f"{', '.join(f'`{tag}`' for tag in lost)} is a special token, and those are dropped before the reward",
            where=f"tokenizer, data source {data_source}",
            fix="add it as an ordinary token (special=False in added_tokens_decoder), or use other tags",
        )


def _as_engines_decode(tokenizer: Any, tag: str) -> str:
    ids = tokenizer.encode(f"a {tag} b", add_special_tokens=False)
    return str(tokenizer.decode(ids, skip_special_tokens=True))
