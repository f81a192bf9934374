"""The code reward, which runs the program in a response against tests in a sandbox."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from egpo.errors import EgpoError, InputError, nearest
from egpo.rewards.answers import split_thinking
from egpo.rewards.sandbox import Limits, ProgramOutcome, Report, Sandbox, SandboxJob, working_sandbox
from egpo.rewards.sandbox.ground_truth import Tests, read_tests
from egpo.rewards.verdict import Verdict
from egpo.tags import THINK_TAGS

REASONS: dict[str, str] = {
    "correct": "every test passed",
    "no_code": "the answer has no fenced block of code",
    "too_long": "the program is longer than a million characters",
    "syntax_error": "the program is not valid Python",
    "runtime_error": "the program raised an exception, or exited with a code other than 0",
    "wrong_answer": "the program ran, and its answer is not the expected one",
    "timeout": "the program exceeded its limit of wall-clock or processor time",
    "memory": "the program exceeded its memory limit",
    "output_limit": "the program exceeded its output limit",
    "crashed": "the program was ended by a signal, or exited in the middle of a test",
    "no_sandbox": "checker failure: no sandbox works, so the program was not run",
    "sandbox_died": "checker failure: the sandbox ended before it reported",
    "bad_test": "checker failure: the test itself is faulty, or sends the program an object that cannot be sent",
}

MODES = ("binary", "fraction")
LONGEST_PROGRAM = 1_000_000

_FENCE = re.compile(r"^(?P<indent>[ \t]*+)(?P<sign>`{3,}|~{3,})[ \t]*(?P<language>[^\s`]*)[^\n]*$", re.MULTILINE)
# A fence that is indented by this many more columns than the opening fence is text, such as an example in a docstring.
_TOO_DEEP = 4
_PYTHON = ("python", "python3", "py")
_SYNTAX = ("SyntaxError", "IndentationError", "TabError", "ValueError: source code string cannot contain null")
_SIGXCPU = 24


def judge_code(
    text: str,
    tests: str | Mapping[str, Any] | Sequence[Any],
    *,
    sandbox: Sandbox | None = None,
    mode: str = "binary",
    tags: tuple[str, str] = THINK_TAGS,
    limits: Limits | None = None,
) -> Verdict:
    """Run the program in `text` against `tests` (docs/rewards/code.md lists their forms), and return the verdict.

    Reward: 1.0 if all tests pass, else 0.0 (`binary`), or the fraction of tests that passed (`fraction`). The reason is
    that of the first test that did not pass. Default sandbox: the one that EGPO_SANDBOX names, else bubblewrap.
    """
    if mode not in MODES:
        raise InputError(f"unknown mode `{mode}`", where="code reward", fix=nearest(mode, MODES))
    read = read_tests(tests)
    program = extract_program(split_thinking(text, tags).answer)
    if program is None:
        return Verdict(0.0, False, "no_code")
    if len(program) > LONGEST_PROGRAM:
        return Verdict(0.0, False, "too_long")
    sandbox = sandbox or _default_sandbox()
    if sandbox is None:
        return Verdict(0.0, False, "no_sandbox", failed=True)
    job = SandboxJob(program, read.work, limits or sandbox.limits, stop_early=mode == "binary")
    return _verdict(sandbox.run(job), read, mode)


def extract_program(answer: str) -> str | None:
    """Return the last code block fenced as Python, closed or not; without one, the last block that names no language;
    None if there is neither."""
    python = unnamed = None
    for block in _blocks(answer):
        if block.language in _PYTHON:
            python = block
        elif not block.language:
            unnamed = block
    chosen = python or unnamed
    if chosen is None:
        return None
    return _outdented(answer[chosen.start : chosen.end].removesuffix(chosen.closing), chosen.indent)


@dataclass(frozen=True)
class _Block:
    """The start and end of the content of a code block, and the indent of its fence.

    `closing`: for a block without a closing line, the fence that may be at the end of its last line of code. It is not
    part of the code.
    """

    language: str
    start: int
    end: int
    indent: int
    closing: str = ""


def _blocks(answer: str) -> Iterator[_Block]:
    """Yield the code blocks of an answer. A block ends at a fence of the same sign and at least the same length, at the
    next Python fence, or at the end of the text.

    Models forget to close a block, or close the last one on its last line of code.
    """
    opening: re.Match[str] | None = None
    for fence in _FENCE.finditer(answer):
        if opening is not None and len(fence["indent"]) >= len(opening["indent"]) + _TOO_DEEP:
            continue
        closing = opening is not None and not fence["language"] and fence["sign"].startswith(opening["sign"])
        if opening is not None and (closing or fence["language"].lower() in _PYTHON):
            yield _block(opening, fence.start())
            opening = None
        if opening is None and not closing:
            opening = fence
    if opening is not None:
        yield _block(opening, len(answer.rstrip()), opening["sign"])


def _block(opening: re.Match[str], end: int, closing: str = "") -> _Block:
    return _Block(opening["language"].lower(), opening.end() + 1, end, len(opening["indent"]), closing)


def _outdented(content: str, fence_indent: int) -> str:
    """Remove the indent of the fence from each line of code, for blocks in a list item.

    If the first line of code is indented less than the fence, only its indent is removed.
    """
    lines = content.split("\n")
    width = min(fence_indent, next((_indent(line) for line in lines if line.strip()), 0))
    return "\n".join(line[min(width, _indent(line)) :] for line in lines) if width else content


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" \t"))


def _default_sandbox() -> Sandbox | None:
    """Return the default sandbox, or None if it does not work. InputError if EGPO_SANDBOX is invalid."""
    try:
        return working_sandbox()
    except InputError:
        raise
    except EgpoError:
        return None


def _verdict(report: Report, tests: Tests, mode: str) -> Verdict:
    total = tests.work.size
    reasons = [_reason(outcome, tests, index) for index, outcome in enumerate(report.outcomes[:total])]
    # A test without an outcome was not run: a limit stopped the program (`stopped`), an earlier test failed, or, if
    # neither is the case, the sandbox died.
    missing = [report.stopped or "sandbox_died"] if len(reasons) < total else []
    first = next((reason for reason in [*reasons, *missing] if reason != "correct"), "correct")
    if "bad_test" in reasons or report.failure or first == "sandbox_died":
        return Verdict(0.0, False, "bad_test" if "bad_test" in reasons else "sandbox_died", failed=True)
    num_passed = reasons.count("correct")
    fraction = num_passed / total
    reward = float(num_passed == total) if mode == "binary" else fraction
    parts = {"tests_passed": fraction} if mode == "fraction" else {}
    return Verdict(reward, num_passed == total, first, parts=parts)


def _reason(outcome: ProgramOutcome, tests: Tests, index: int) -> str:
    if outcome.status == "exit" and outcome.code == 0:
        right = same_output(outcome.output.decode("utf-8", "replace"), tests.outputs[index])
        return "correct" if right else "wrong_answer"
    if outcome.status == "signal":
        return "timeout" if outcome.code == _SIGXCPU else "crashed"
    if outcome.status in _BY_STATUS:
        return _BY_STATUS[outcome.status]
    return _raised(outcome.error)


_BY_STATUS = {
    "ok": "correct",
    "wrong": "wrong_answer",
    "timeout": "timeout",
    "output": "output_limit",
    # Too many files: empty files take no space in the file system, only memory of the kernel.
    "files": "memory",
    "memory": "memory",
    "died": "crashed",
    "unsupported": "bad_test",
}


def _raised(error: str) -> str:
    last = error.strip().rpartition("\n")[2]
    if last.startswith(_SYNTAX):
        return "syntax_error"
    return "memory" if last.startswith("MemoryError") else "runtime_error"


def same_output(got: str, expected: str) -> bool:
    """Return whether two outputs are equal, ignoring white space at the end of each line and of the output."""
    return _lines(got) == _lines(expected)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]
