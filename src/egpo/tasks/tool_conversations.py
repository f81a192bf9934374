"""Multi-turn tool conversations in the raw format, drawn by a seeded generator: the stand-in for a file that is not
public. Several tools and distractors, parallel calls, turns without a call, tool results, thoughts."""

import json
import random
from dataclasses import dataclass
from typing import Any

from egpo.tasks.tool_catalogue import TOOLS, Tool

CHAT = (
    ("Thanks, that is all I wanted to know.", "You are welcome."),
    ("What can you help me with?", "With anything that my tools can do; just ask."),
    ("Are you sure about that?", "Yes, that is what the tool said."),
    ("Hm, let me think for a moment.", "Take your time."),
)
NO_CALL_SHARE = 0.04
"""So many conversations have no call at all: a conversion must drop and count them."""


@dataclass(frozen=True)
class Shape:
    """How large a conversation may be: requests, calls of a request, and tools on offer (2 at least, half of them for
    use and half as distractors); and whether the tools are described, or show their types alone."""

    max_turns: int = 4
    max_calls: int = 3
    max_tools: int = 8
    described: bool = True


FULL = Shape()


@dataclass(frozen=True)
class Wanted:
    """One call that the user asks for."""

    tool: Tool
    arguments: dict[str, Any]

    def request(self) -> str:
        given = ", ".join(f"{name}: {json.dumps(v, ensure_ascii=False)}" for name, v in self.arguments.items())
        return f"{self.tool.wish} ({given})" if given else self.tool.wish

    def python(self) -> str:
        return f"{self.tool.name}({', '.join(f'{name}={value!r}' for name, value in self.arguments.items())})"


def draw_conversation(rng: random.Random, shape: Shape = FULL) -> dict[str, Any]:
    """A raw record: "0" is the system turn with `tools` as a JSON string, the others are {role, content}."""
    num_useful = shape.max_tools // 2
    used = rng.sample(TOOLS, rng.randint(1, num_useful))
    others = [tool for tool in TOOLS if tool not in used]
    offered = [*used, *rng.sample(others, rng.randint(1, shape.max_tools - num_useful))]
    rng.shuffle(offered)
    tools = json.dumps([tool.schema(described=shape.described) for tool in offered], ensure_ascii=False)
    turns: list[dict[str, Any]] = [{"role": "system", "tools": tools}]
    chats_only = rng.random() < NO_CALL_SHARE
    for _ in range(rng.randint(1, shape.max_turns)):
        turns += _chat(rng) if chats_only or rng.random() < 0.2 else _calls(rng, used, shape.max_calls)
    return {str(number): turn for number, turn in enumerate(turns)}


def _chat(rng: random.Random) -> list[dict[str, Any]]:
    question, answer = rng.choice(CHAT)
    thought = "<think>\nNo tool is needed here.\n</think>\n\n" if rng.random() < 0.5 else ""
    return [{"role": "user", "content": question}, {"role": "assistant", "content": thought + answer}]


def _calls(rng: random.Random, tools: list[Tool], max_calls: int) -> list[dict[str, Any]]:
    """A request, its calls, their results, and a closing word: now and then an empty turn in between."""
    wanted = [_wanted(rng, rng.choice(tools)) for _ in range(min(max_calls, rng.choice((1, 1, 1, 2, 3))))]
    requests = " Also, ".join(f"please {want.request()}." for want in wanted)
    thought = f"The user wants {len(wanted)} thing(s): {', '.join(want.tool.name for want in wanted)}."
    calls = f"<think>\n{thought}\n</think>\n\n[{', '.join(want.python() for want in wanted)}]"
    turns: list[dict[str, Any]] = [
        {"role": "user", "content": requests[0].upper() + requests[1:]},
        {"role": "assistant", "content": calls},
        {"role": "tool", "content": [_result(rng, want) for want in wanted]},
        {"role": "assistant", "content": "Done."},
    ]
    if rng.random() < 0.1:
        turns.insert(3, {"role": "assistant", "content": ""})
    return turns


def _wanted(rng: random.Random, tool: Tool) -> Wanted:
    given = [argument for argument in tool.arguments if not argument.optional or rng.random() < 0.5]
    return Wanted(tool, {argument.name: argument.draw(rng) for argument in given})


def _result(rng: random.Random, want: Wanted) -> dict[str, Any]:
    return {"tool": want.tool.name, "ok": True, "id": rng.randint(1, 9999), "note": None}
