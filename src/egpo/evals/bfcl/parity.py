"""Is the model asked as it was trained? The prompt that BFCL builds against the training prompt, part by part.

A model trained with one instruction, thinking tag or spelling of tools, and evaluated with another, is measured on the
difference as well.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Any

from egpo.tasks import Problem, Task

_TOOLS, _SHOWN = "# Tools", 160
_LOOKED_AT = 64


@dataclass(frozen=True)
class Mismatch:
    """One part of the prompt that differs: `instruction`, `tools`, `conversation` or `thinking tag`."""

    part: str
    training: str
    bfcl: str


@dataclass(frozen=True)
class Question:
    """A training problem as BFCL would pose it: the turns without the system's, and the bare functions."""

    messages: tuple[dict[str, str], ...]
    tools: tuple[dict[str, Any], ...]


def as_question(problem: Problem) -> Question | None:
    """None for a problem without tools: there is nothing of BFCL in it."""
    tools = json.loads(str(problem.extra.get("tools") or "[]"))
    if not isinstance(tools, list) or not tools:
        return None
    turns = tuple(dict(message) for message in problem.messages if message["role"] != "system")
    return Question(turns, tuple(tool.get("function", tool) for tool in tools))


def training_instruction(task: Task) -> str | None:
    """What stands before the tools in the prompt of a training problem; None where the training has no tools.

    A task whose first problems have no tools has none at all.
    """
    posed = (problem for problem in islice(task.problems("train"), _LOOKED_AT) if as_question(problem))
    problem = next(posed, None)
    if problem is None:
        return None
    first = task.prompt(problem)[0]
    return str(first["content"]).partition(_TOOLS)[0].strip() if first["role"] == "system" else ""


def mismatches(training: str, bfcl: str, open_tag: str) -> list[Mismatch]:
    """Between two prompts for the same question. No difference, no mismatch."""
    ours, theirs = _parts(training, open_tag), _parts(bfcl, open_tag)
    return [Mismatch(name, *_apart(ours[name], theirs[name])) for name in ours if ours[name] != theirs[name]]


def _parts(prompt: str, open_tag: str) -> dict[str, str]:
    """The system turn up to the tools, the tools, the turns after them, and whether the thinking is opened."""
    body = prompt.rstrip()
    opened = body.endswith(open_tag)
    body = body.removesuffix(open_tag).rstrip()
    before, _, after = body.partition(_TOOLS) if _TOOLS in body else ("", "", body)
    tools, _, conversation = after.rpartition("</tools>")
    return {
        "instruction": _system_text(before),
        "tools": tools.strip(),
        "conversation": conversation.strip(),
        "thinking tag": open_tag if opened else "none",
    }


def _system_text(before: str) -> str:
    """Without the template's own marks, such as `<|im_start|>system`."""
    lines: Sequence[str] = before.splitlines()
    return "\n".join(line for line in lines if not line.startswith("<|")).strip() or "none"


def _apart(one: str, other: str) -> tuple[str, str]:
    """Both from a little before the place where they part."""
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
    start = max(0, same - 30)
    return _excerpt(one, start), _excerpt(other, start)


def _excerpt(text: str, start: int) -> str:
    return (("…" if start else "") + text[start : start + _SHOWN]) or "none"
