"""Evaluates a model with BFCL: passes, each in a new folder; figures; and a check of the prompt.

The check compares the prompt that BFCL builds with the training prompt, part by part. If instruction, thinking tag or
format of the tools differ, the evaluation also measures that difference.
"""

import json
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

from egpo.chat_templates import render
from egpo.errors import InputError, warn_once
from egpo.evals.bfcl.environment import bfcl_python
from egpo.evals.bfcl.passes import BfclSettings, built_prompt, run_pass
from egpo.evals.bfcl.targets import BfclTarget, running_server
from egpo.evals.bfcl.verdicts import (
    CaseVerdict,
    category_figures,
    evaluation_of,
    read_verdicts,
    require_asked,
    require_generated,
)
from egpo.evals.evaluate import Evaluation, file_name, write_evaluation
from egpo.tasks import Problem, Task, load_task

_TOOLS, _SHOWN = "# Tools", 160
_LOOKED_AT = 64


@dataclass(frozen=True)
class PromptMismatch:
    """A part of the prompt that differs: `instruction`, `tools`, `conversation` or `thinking tag`."""

    part: str
    training: str
    bfcl: str


@dataclass(frozen=True)
class Question:
    """A training problem in BFCL's form: the turns without the system turn, and the functions."""

    messages: tuple[dict[str, str], ...]
    tools: tuple[dict[str, Any], ...]


def as_question(problem: Problem) -> Question | None:
    """Return a problem in BFCL's form; None for a problem without tools."""
    tools = json.loads(str(problem.extra.get("tools") or "[]"))
    if not isinstance(tools, list) or not tools:
        return None
    turns = tuple(dict(message) for message in problem.messages if message["role"] != "system")
    return Question(turns, tuple(tool.get("function", tool) for tool in tools))


def training_instruction(task: Task) -> str | None:
    """Return the text before the tools in a training prompt; None if the first 64 problems have no tools."""
    posed = (problem for problem in islice(task.problems("train"), _LOOKED_AT) if as_question(problem))
    problem = next(posed, None)
    if problem is None:
        return None
    first = task.prompt(problem)[0]
    return str(first["content"]).partition(_TOOLS)[0].strip() if first["role"] == "system" else ""


def mismatches(training: str, bfcl: str, open_tag: str) -> list[PromptMismatch]:
    """Return the parts in which two prompts for the same question differ."""
    ours, theirs = _parts(training, open_tag), _parts(bfcl, open_tag)
    return [PromptMismatch(name, *_apart(ours[name], theirs[name])) for name in ours if ours[name] != theirs[name]]


def _parts(prompt: str, open_tag: str) -> dict[str, str]:
    """Split a prompt: system turn up to the tools, tools, turns after them, and whether it opens the thinking."""
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
    """Return the text without lines of the template, such as `<|im_start|>system`."""
    lines: Sequence[str] = before.splitlines()
    return "\n".join(line for line in lines if not line.startswith("<|")).strip() or "none"


def _apart(one: str, other: str) -> tuple[str, str]:
    """Return excerpts of both texts that start shortly before the first difference."""
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
    start = max(0, same - 30)
    return _excerpt(one, start), _excerpt(other, start)


def _excerpt(text: str, start: int) -> str:
    return (("…" if start else "") + text[start : start + _SHOWN]) or "none"


@dataclass(frozen=True)
class BfclOptions:
    """How BFCL is run. `max_model_len` is the context of a server that we start; None: the model's own."""

    num_passes: int = 1
    allow_failed: bool = False
    offline: bool = False
    max_model_len: int | None = None
    out: Path | None = None


@dataclass(frozen=True)
class BfclOutcome:
    """An evaluation, its file, BFCL's own files, and the differences from the training prompt."""

    evaluation: Evaluation
    path: Path
    raw: Path
    """BFCL's own files, one folder per pass."""
    mismatches: tuple[PromptMismatch, ...] | None
    """None if there is no training prompt to compare with."""


def evaluate_bfcl(
    target: BfclTarget, asked: BfclSettings, wanted: BfclOptions, say: Callable[[str], None]
) -> BfclOutcome:
    """Run all passes. `asked` lacks the server's address, which is known once it runs.

    After each pass the evaluation so far is written.
    """
    python = bfcl_python(offline=wanted.offline, say=say)
    folder = wanted.out or target.folder
    name = evaluation_name(target, asked, wanted)
    raw = folder / f"{name}.bfcl" / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    found = prompt_mismatches(target, asked, python, raw / "prompt")
    passes: list[list[CaseVerdict]] = []
    path = folder / f"{name}.json"
    with running_server(target, wanted.max_model_len, asked.timeout_s) as server:
        whole = replace(asked, url=server.url, served_name=server.served_name, context=wanted.max_model_len)
        for number in range(1, wanted.num_passes + 1):
            work = raw / f"pass_{number}"
            say(f"{target.label}: pass {number} of {wanted.num_passes}")
            run_pass(python, whole, work, _heard(say))
            passes.append(read_verdicts(work))
            require_asked(passes[-1], asked.categories, asked.cases)
            if not wanted.allow_failed:
                require_generated(passes[-1:], str(work))
            evaluation = evaluation_of(target.label, whole, passes)
            path = write_evaluation(folder, name, evaluation, target.origin, category_figures(evaluation.samples))
    return BfclOutcome(evaluation, path, raw, found)


def prompt_mismatches(
    target: BfclTarget, asked: BfclSettings, python: Path, work: Path
) -> tuple[PromptMismatch, ...] | None:
    """Compare BFCL's prompt for the run's first training problem with tools with its training prompt."""
    from transformers import AutoTokenizer

    recipe = target.place.recipe if target.place else None
    if recipe is None:
        return None
    try:
        task = load_task(recipe.task.name, **recipe.task.settings)
        posed = ((problem, question) for problem in task.problems("train") if (question := as_question(problem)))
        found = next(posed, None)
    except InputError as error:  # the training data may be missing on this machine
        warn_once("bfcl parity", f"the prompt is not compared with the training prompt: {error}")
        return None
    if found is None:
        return None
    problem, question = found
    tokenizer = AutoTokenizer.from_pretrained(target.tokenizer, trust_remote_code=False)
    messages = [dict(message) for message in task.prompt(problem)]
    training = render(tokenizer, messages, variables=recipe.model.template)
    built = built_prompt(python, asked, work, question.messages, question.tools)
    return tuple(mismatches(training, built, recipe.segments.tags[0]))


def evaluation_name(target: BfclTarget, asked: BfclSettings, wanted: BfclOptions) -> str:
    """Return the file name of the evaluation: settings, then model.

    Trials with a few cases, and served models with the name of a local one, get other names, so that they do not
    overwrite an evaluation.
    """
    of_run = wanted.out is None and target.place is not None and target.place.run is not None
    step = f"step{target.place.step}" if of_run and target.place else target.label
    categories = "-".join(asked.categories) if len(asked.categories) < 4 else f"{len(asked.categories)}categories"
    few = f"first{max(map(len, asked.cases.values()))}" if asked.cases else ""
    warm = "" if asked.temperature == BfclSettings.temperature else f"t{asked.temperature:g}"
    bound = f"max{asked.other_max_tokens}" if asked.other_max_tokens else ""
    served = "served" if target.url is not None else ""
    return file_name("bfcl", categories, asked.prompt_format, few, warm, bound, served, step)


def _heard(say: Callable[[str], None]) -> Callable[[str], None]:
    """Return a callback that passes on only errors and completed steps: BFCL prints a page per case."""

    def hear(line: str) -> None:
        with suppress(StopIteration):
            say(next(_telling(line)))

    return hear


def _telling(line: str) -> Iterator[str]:
    if "Error, " in line or "❗" in line:
        yield f"  {line.strip()[:300]}"
    elif line.startswith("✅ Test completed"):
        yield f"  {line.removeprefix('✅ ').strip()}"
