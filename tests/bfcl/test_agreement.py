"""Our verdicts against those of BFCL's official checker, on all of its single-turn Python cases."""

import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from egpo.rewards.tool_calls import judge_tool_calls
from tests.bfcl.cases import PYTHON, Calls, Case, cases, right_calls
from tests.bfcl.mutations import mutations

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="BFCL's environment is not built (make test builds it)")

# Cases of which the data leaves no right answer: an empty list of allowed values, or an answer that demands a
# parameter which the function does not have. The official checker accepts no call for them either.
UNANSWERABLE = {
    "live_simple_106-63-0",
    "live_simple_112-68-0",
    "live_multiple_862-181-3",
    "live_multiple_964-207-0",
}

# (kind of change, our verdict, the official one): how often. docs/rewards/tool_calls.md explains each.
DISAGREEMENTS = {
    # Inside a dictionary the official checker compares with Python's ==, under which True is 1.
    ("argument key bool to int", False, True): 28,
    ("argument key bool to float", False, True): 28,
    ("argument key number to bool", False, True): 12,
    # One call fits two of the answers; the official checker gives it to the first and has none left for the second.
    ("calls reversed", True, False): 2,
}


@dataclass(frozen=True)
class Attempt:
    case: Case
    kind: str
    calls: Calls
    tagged: bool

    @property
    def text(self) -> str:
        named = [named for call in self.calls for named in call.items()]
        if self.tagged:
            objects = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in named]
            return "\n".join(f"<tool_call>\n{one}\n</tool_call>" for one in objects)
        return "[" + ", ".join(f"{name}({_keywords(arguments)})" for name, arguments in named) + "]"


def _keywords(arguments: dict) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in arguments.items())


def _attempts(case: Case) -> Iterator[Attempt]:
    right = [right_calls(case, pick=pick, leave_out=leave_out) for pick in (0, -1) for leave_out in (False, True)]
    seen = set()
    for kind, calls in [*(("right", calls) for calls in right), *mutations(right[0])]:
        if str(calls) in seen:
            continue
        seen.add(str(calls))
        yield Attempt(case, kind, calls, tagged=False)
        if "tuple" not in kind:  # JSON has none
            yield Attempt(case, kind, calls, tagged=True)


@dataclass(frozen=True)
class Outcome:
    attempt: Attempt
    ours: bool
    official: bool | str


def _outcomes() -> list[Outcome]:
    attempts = {case: list(_attempts(case)) for case in cases()}
    rows = [_row(case, tried) for case, tried in attempts.items()]
    script = Path(__file__).with_name("official_checker.py")
    done = subprocess.run(
        [PYTHON, script], input="\n".join(rows), capture_output=True, text=True, check=True, timeout=600
    )
    official = [verdict for line in done.stdout.splitlines() for verdict in json.loads(line)]
    tried = [attempt for one_case in attempts.values() for attempt in one_case]
    return [Outcome(attempt, _ours(attempt), verdict) for attempt, verdict in zip(tried, official, strict=True)]


def _row(case: Case, attempts: list[Attempt]) -> str:
    tried = [attempt.calls if attempt.tagged else attempt.text for attempt in attempts]
    return json.dumps({"tools": case.tools, "answers": case.answers, "category": case.category, "attempts": tried})


def _ours(attempt: Attempt) -> bool:
    case = attempt.case
    verdict = judge_tool_calls(attempt.text, case.answers_json, mode="plain", tools=case.tools_json)
    assert verdict.reward == float(verdict.correct)
    return verdict.correct


def test_agreement_with_the_official_checker():
    """One test, so that the checker runs once: about 300,000 verdicts of each side."""
    outcomes = _outcomes()
    failures = Counter(outcome.official for outcome in outcomes if isinstance(outcome.official, str))
    assert not failures, "the official checker itself failed"
    right = {outcome.attempt.case.id for outcome in outcomes if outcome.attempt.kind == "right" and outcome.ours}
    assert {outcome.attempt.case.id for outcome in outcomes} - right == UNANSWERABLE
    assert len(right) == 2347
    differing = [outcome for outcome in outcomes if outcome.ours is not outcome.official]
    print(f"agreement on {len(outcomes) - len(differing):,} of {len(outcomes):,} verdicts")
    assert Counter((one.attempt.kind, one.ours, one.official) for one in differing) == DISAGREEMENTS
    accepted = Counter(outcome.official for outcome in outcomes)
    assert min(accepted.values()) > 50_000, "both verdicts have to be common for agreement to mean something"
