"""Responses in the shapes that the tests judge."""

import json
from typing import Any

from egpo.rewards.tool_calls import judge_tool_calls
from egpo.rewards.verdict import Verdict

THOUGHT = "<think>\nThe user wants the weather.\n</think>\n\n"


def tagged(*calls: tuple[str, dict[str, Any]]) -> str:
    """Calls as Qwen's template writes them."""
    objects = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in calls]
    return "\n".join(f"<tool_call>\n{one}\n</tool_call>" for one in objects)


def listed(*calls: tuple[str, dict[str, Any]]) -> str:
    """Calls as BFCL's prompt asks for them."""
    return "[" + ", ".join(f"{name}({_keywords(arguments)})" for name, arguments in calls) + "]"


def _keywords(arguments: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())


def plain(text: str, ground_truth: Any, **settings: Any) -> Verdict:
    return judge_tool_calls(text, ground_truth, mode="plain", **settings)


def reason(text: str, ground_truth: Any, **settings: Any) -> str:
    return plain(text, ground_truth, **settings).reason
