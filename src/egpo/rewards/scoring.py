"""One call for every reward: the row's `data_source` says which."""

from collections.abc import Mapping
from typing import Any

from egpo.errors import InputError, nearest
from egpo.rewards.boundary import fields_of, text_of
from egpo.rewards.hybrid import HYBRID
from egpo.rewards.kinds import KINDS, Kind
from egpo.rewards.verdict import Verdict

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
