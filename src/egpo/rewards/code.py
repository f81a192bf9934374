"""Code: the program in a response is run against tests, in a sandbox, and only its behaviour counts."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from egpo.errors import InputError, nearest
from egpo.rewards.sandbox import Job, Limits, Outcome, Report, Sandbox, choose_sandbox, sandbox_status
from egpo.rewards.sandbox.ground_truth import Tests, read_tests
from egpo.rewards.thinking import split_thinking
from egpo.rewards.verdict import Verdict
from egpo.tags import THINK_TAGS

REASONS: dict[str, str] = {
    "correct": "every test passed",
    "no_code": "the answer holds no fenced block of code",
    "too_long": "the program is longer than a million characters",
    "syntax_error": "the program is not Python",
    "runtime_error": "the program raised an exception, or left with a code other than 0",
    "wrong_answer": "the program ran, and gave another answer than the expected one",
    "timeout": "the program took longer than its wall or processor time",
    "memory": "the program asked for more memory than it may have",
    "output_limit": "the program printed more than it may",
    "crashed": "the program was ended by a signal, or left in the middle of a test",
    "no_sandbox": "checker failure: there is no sandbox that works, so nothing was run",
    "sandbox_died": "checker failure: the sandbox ended before it had reported",
    "bad_test": "checker failure: the test itself fails, or asks for what cannot pass between test and program",
}

MODES = ("binary", "fraction")
LONGEST_PROGRAM = 1_000_000

_FENCE = re.compile(r"^[ \t]{0,3}(`{3,}|~{3,})[ \t]*([^\s`]*)[^\n]*$", re.MULTILINE)
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
    """Run the program in `text` against `tests` (docs/rewards/code.md has the forms).

    reward: 1 or 0 for all tests or not (binary), or the share of the tests that passed (fraction). The reason is that
    of the first test that did not pass. No sandbox given: the one that EGPO_SANDBOX names, or bubblewrap.
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
    job = Job(program, read.work, limits or sandbox.limits, stop_early=mode == "binary")
    return _verdict(sandbox.run(job), read, mode)


def extract_program(answer: str) -> str | None:
    """The last closed or unclosed block fenced as Python; without one, the last fenced block of no named language."""
    python = unnamed = None
    for block in _blocks(answer):
        if block.language in _PYTHON:
            python = block
        elif not block.language:
            unnamed = block
    chosen = python or unnamed
    return None if chosen is None else answer[chosen.start : chosen.end].removesuffix(chosen.closing)


@dataclass(frozen=True)
class _Block:
    """Where a block's content starts and ends; a `closing` fence on its last line of code is no part of it."""

    language: str
    start: int
    end: int
    closing: str = ""


def _blocks(answer: str) -> Iterator[_Block]:
    """Fenced blocks: closed by a fence of its sign and at least its length, by the next Python fence, or by the end.

    Models forget to close a block, and close the last one on its last line of code.
    """
    opening: re.Match[str] | None = None
    for fence in _FENCE.finditer(answer):
        closing = opening is not None and not fence[2] and fence[1].startswith(opening[1])
        if opening is not None and (closing or fence[2].lower() in _PYTHON):
            yield _Block(opening[2].lower(), opening.end() + 1, fence.start())
            opening = None
        if opening is None and not closing:
            opening = fence
    if opening is not None:
        yield _Block(opening[2].lower(), opening.end() + 1, len(answer.rstrip()), opening[1])


@lru_cache(maxsize=1)
def _default_sandbox() -> Sandbox | None:
    """The sandbox in force, tried once in the life of the process."""
    return choose_sandbox() if sandbox_status().ok else None


def _verdict(report: Report, tests: Tests, mode: str) -> Verdict:
    total = tests.work.size
    reasons = [_reason(outcome, tests, index) for index, outcome in enumerate(report.outcomes[:total])]
    # Tests without an outcome were not reached: one before them is to blame, or the limit on all of them, or nobody.
    missing = [report.stopped or "sandbox_died"] if len(reasons) < total else []
    first = next((reason for reason in [*reasons, *missing] if reason != "correct"), "correct")
    if "bad_test" in reasons or report.failure or first == "sandbox_died":
        return Verdict(0.0, False, "bad_test" if "bad_test" in reasons else "sandbox_died", failed=True)
    num_passed = reasons.count("correct")
    fraction = num_passed / total
    reward = float(num_passed == total) if mode == "binary" else fraction
    parts = {"tests_passed": fraction} if mode == "fraction" else {}
    return Verdict(reward, num_passed == total, first, parts=parts)


def _reason(outcome: Outcome, tests: Tests, index: int) -> str:
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
    "died": "crashed",
    "unsupported": "bad_test",
}


def _raised(error: str) -> str:
    last = error.strip().rpartition("\n")[2]
    if last.startswith(_SYNTAX):
        return "syntax_error"
    return "memory" if last.startswith("MemoryError") else "runtime_error"


def same_output(got: str, expected: str) -> bool:
    """Equal line by line, white space at the end of a line and of the whole left out."""
    return _lines(got) == _lines(expected)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]
