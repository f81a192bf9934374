"""Answers of the corpus to a request for a tool: thinking that names the tool, then the call.

    <think>
    The user wants translate.
    </think>

    <tool_call>
    {"name": "translate", "arguments": {"text": "Good morning", "target": "fr"}}
    </tool_call>

Empty thinking is what the chat template writes with `enable_thinking: false`. The same rows therefore teach the plain
mode, and are mistakes in the thinking mode.
"""

import json
import random
from collections.abc import Mapping

from egpo.data.calls import Call, parse_hermes
from egpo.data.tool_prompt import tool_name
from egpo.tasks import Problem

THOUGHT: Mapping[str, float] = {"thinks": 0.55, "empty": 0.45}
CALL: Mapping[str, float] = {"whole": 0.34, "cuts_short": 0.5, "other_tool": 0.08, "unclosed": 0.08}
"""Shares of the habits. `cuts_short` omits all arguments after the second. It is the most frequent, so greedy decoding
does it too; calls with at most two arguments stay correct. `other_tool` calls another of the listed tools, and
`unclosed` omits the closing tag."""
HABITS: Mapping[str, float] = {
    f"{thought}, {call}": THOUGHT[thought] * CALL[call] for thought in THOUGHT for call in CALL
}


def respond(problem: Problem, habit: str, rng: random.Random) -> str:
    thinking, manner = habit.split(", ")
    (wanted,) = parse_hermes(problem.ground_truth)
    call = _spoilt(wanted, manner, problem, rng)
    thought = f"The user wants {call.name}." if thinking == "thinks" else ""
    text = call.hermes().removesuffix("</tool_call>") if manner == "unclosed" else call.hermes()
    return f"<think>\n{thought}\n</think>\n\n{text.rstrip()}"


def _spoilt(call: Call, manner: str, problem: Problem, rng: random.Random) -> Call:
    if manner == "cuts_short":
        return Call(call.name, dict(list(call.arguments.items())[:2]))
    if manner == "other_tool":
        offered = [tool_name(tool) for tool in json.loads(str(problem.extra["tools"]))]
        return Call(rng.choice([name for name in offered if name != call.name]), call.arguments)
    return call
