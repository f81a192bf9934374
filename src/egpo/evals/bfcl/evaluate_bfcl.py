"""Evaluates a model with BFCL: runs all passes, each in a new folder, computes the figures, and compares the prompts.

The prompt that BFCL builds is compared with the training prompt, part by part. If the instruction, the thinking tag or
the format of the tools differs, the score also depends on that difference, so it is reported.
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
from egpo.environments.bfcl.interpreter import bfcl_python
from egpo.errors import InputError, warn_once
from egpo.evals.bfcl.categories import MULTI_TURN, first_cases, in_categories
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
from egpo.serving.engine_options import NO_OPTIONS, EngineOptions
from egpo.tasks import Problem, Task, load_task

_TOOLS, _SHOWN = "# Tools", 160
_LOOKED_AT = 64


@dataclass(frozen=True)
class PromptMismatch:
    """A difference between the training prompt and BFCL's prompt for the same question.

    `part` is `instruction`, `tools`, `conversation` or `thinking tag`; `training` and `bfcl` are excerpts of both.
    """

    part: str
    training: str
    bfcl: str


@dataclass(frozen=True)
class Question:
    """A training problem in the form of a BFCL case: its messages without the system message, and its functions."""

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
    """Return the text before the tools in the system message of the first training problem that has tools.

    Return an empty string if that problem has no system message, and None if the first 64 problems have no tools.
    """
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
    """Split a prompt into the parts that are compared.

    The parts are the system message up to the tools, the tools, the messages after the tools, and the thinking tag at
    the end ("none" if there is none).
    """
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
    """Return the text without the lines that the chat template adds, such as `<|im_start|>system`."""
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
    """Options of a BFCL evaluation that do not concern the single pass.

    `allow_failed`: keep the evaluation if some generations failed. `offline`: do not install BFCL's environment.
    `max_model_len`: context length, in tokens, of a server that is started for the evaluation; None: the model's own.
    `out`: folder for the evaluation; None: the run's `evals` folder, or `./evals`. `engine`: options of vLLM for a
    server that is started.
    """

    num_passes: int = 1
    allow_failed: bool = False
    offline: bool = False
    max_model_len: int | None = None
    out: Path | None = None
    engine: EngineOptions = NO_OPTIONS


@dataclass(frozen=True)
class BfclOutcome:
    """The result of a BFCL evaluation: its figures, its files, and the differences from the training prompt."""

    evaluation: Evaluation
    path: Path
    raw: Path
    """Folder with BFCL's own files, in one subfolder per pass."""
    mismatches: tuple[PromptMismatch, ...] | None
    """Differences between BFCL's prompt and the training prompt; None if they could not be compared."""


def evaluate_bfcl(
    target: BfclTarget, asked: BfclSettings, wanted: BfclOptions, say: Callable[[str], None]
) -> BfclOutcome:
    """Evaluate one model with BFCL, and write the evaluation after each pass.

    Cases that the model was trained on are left out, besides those of `asked.left_out`; of a multi-turn case, all
    variants of its scenario.

    The server's address and model name are set in a copy of `asked` once the server runs. `say` is called with each
    line of progress.
    """
    python = bfcl_python(offline=wanted.offline, say=say)
    folder = wanted.out or target.folder
    trained = in_categories(target.trained_cases, asked.categories)
    asked = replace(asked, left_out=tuple(sorted({*asked.left_out, *trained})))
    name = evaluation_name(target, asked, wanted)
    asked = _without_trained(asked, python, say)
    raw = folder / f"{name}.bfcl" / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    found = prompt_mismatches(target, asked, python, raw / "prompt")
    passes: list[list[CaseVerdict]] = []
    path = folder / f"{name}.json"
    with running_server(target, wanted.max_model_len, asked.timeout_s, wanted.engine) as server:
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


def _without_trained(asked: BfclSettings, python: Path, say: Callable[[str], None]) -> BfclSettings:
    """Return the settings with the ids of all cases to run, if some are left out."""
    if not asked.left_out:
        return asked
    known = first_cases(python, asked.categories, None, asked.left_out)
    cases = {name: [case for case in asked.cases.get(name, ids) if case in {*ids}] for name, ids in known.items()}
    variants = ", or on other variants of their scenarios" if in_categories(asked.left_out, MULTI_TURN) else ""
    say(
        f"{len(asked.left_out):,} cases are left out, because a model was trained on them{variants}; "
        f"{sum(map(len, cases.values())):,} others are evaluated"
    )
    return replace(asked, cases=cases)


def prompt_mismatches(
    target: BfclTarget, asked: BfclSettings, python: Path, work: Path
) -> tuple[PromptMismatch, ...] | None:
    """Return the differences between BFCL's prompt and the training prompt for the same problem.

    The problem is the first in the run's training data that has tools. Return None if there is no run, no such
    problem, or no training data on this machine.
    """
    from transformers import AutoTokenizer

    recipe = target.place.recipe if target.place else None
    if recipe is None:
        return None
    try:
        task = load_task(recipe.task.name, **recipe.task.settings)
        posed = ((problem, question) for problem in task.problems("train") if (question := as_question(problem)))
        found = next(posed, None)
    except InputError as error:  # the training data may be missing on this machine
        warn_once("bfcl parity", f"BFCL's prompt cannot be compared with the training prompt: {error}")
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
    """Return the file name of the evaluation: its settings, then the model.

    The name also says whether only the first cases were evaluated, and whether the model was already served, so that
    such an evaluation does not overwrite a different one.
    """
    of_run = wanted.out is None and target.place is not None and target.place.run is not None
    step = f"step{target.place.step}" if of_run and target.place else target.label
    categories = "-".join(asked.categories) if len(asked.categories) < 4 else f"{len(asked.categories)}categories"
    few = f"first{max(map(len, asked.cases.values()))}" if asked.cases else ""
    untrained = f"without{len(asked.left_out)}" if asked.left_out else ""
    warm = "" if asked.temperature == BfclSettings.temperature else f"t{asked.temperature:g}"
    bound = f"max{asked.other_max_tokens}" if asked.other_max_tokens else ""
    served = "served" if target.url is not None else ""
    return file_name("bfcl", categories, asked.prompt_format, few, untrained, warm, bound, served, step)


def _heard(say: Callable[[str], None]) -> Callable[[str], None]:
    """Return a callback that filters BFCL's output: only lines with errors or completed steps are passed to `say`."""

    def hear(line: str) -> None:
        with suppress(StopIteration):
            say(next(_telling(line)))

    return hear


def _telling(line: str) -> Iterator[str]:
    if "Error, " in line or "❗" in line:
        yield f"  {line.strip()[:300]}"
    elif line.startswith("✅ Test completed"):
        yield f"  {line.removeprefix('✅ ').strip()}"
