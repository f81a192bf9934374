"""A full disk at every write, and a refused one: run a command with the Nth call refused, then again without.

Nothing that was there before may be lost; a failed command says why, with exit code 1 or 2; the second run ends in the
same files as an undisturbed one.
"""

import ast
import errno
import re
import subprocess
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.crashes import DIFFERS, FAILED, promised, restarted
from tests.faults.disk import read_state
from tests.faults.workloads import environment

_WRITE, _OPEN_TO_WRITE, _OPEN_TO_READ, _NAME, _REMOVE, _SYNC = 1, 2, 4, 8, 16, 32
NEVER = 2**30
NOTED = "same but for a note of the failure"


@dataclass(frozen=True)
class Fault:
    """Which calls fail with which error: once, or from then on."""

    error: int
    calls: int
    lasting: bool


FAULTS = {
    "full disk": Fault(errno.ENOSPC, _WRITE | _OPEN_TO_WRITE | _NAME | _SYNC, True),
    "read-only": Fault(errno.EROFS, _WRITE | _OPEN_TO_WRITE | _NAME | _REMOVE | _SYNC, True),
    "no permission": Fault(errno.EACCES, _OPEN_TO_WRITE | _NAME | _REMOVE, False),
    "too many open files": Fault(errno.EMFILE, _OPEN_TO_WRITE | _OPEN_TO_READ, False),
}


def build(folder):
    """Compile the library that refuses, and return its path."""
    library = Path(folder) / "refusing.so"
    source = Path(__file__).with_name("refusing.c")
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


@dataclass
class Refusals:
    name: str
    fault: str
    num_calls: int = 0
    counts: Counter = field(default_factory=Counter)
    failures: list = field(default_factory=list)
    messages: Counter = field(default_factory=Counter)
    seconds: float = 0.0

    def row(self):
        shown = ", ".join(f"{count} {outcome}" for outcome, count in sorted(self.counts.items()))
        return f"{self.name}, {self.fault}: {self.num_calls} calls, {sum(self.counts.values())} refused: {shown}"


def count_calls(name, fault, workload, start, place, inputs, server):
    """Run the command undisturbed, and count the calls that could be refused."""
    root = place / "work"
    start.write(root)
    answer = server.run(
        workload.words(inputs), root, _arguments(root, FAULTS[fault], NEVER), **_env(workload, root, inputs)
    )
    assert answer.code == 0, answer.err
    return Refusals(name, fault, answer.num_calls)


def refuse(refusals, workload, start, place, inputs, expected, server, numbers=None, deadline=None):
    """Refuse each of these calls (all by default)."""
    root, fault, began = place / "work", FAULTS[refusals.fault], time.monotonic()
    for number in range(1, refusals.num_calls + 1) if numbers is None else numbers:
        if deadline is not None and time.monotonic() > deadline:
            break
        start.write(root)
        env = _env(workload, root, inputs)
        answer = server.run(workload.words(inputs), root, _arguments(root, fault, number), **env)
        outcome, said = judged(answer, start, workload, root, inputs, expected, server)
        refusals.counts[outcome] += 1
        refusals.messages.update(line.replace(str(root), "") for line in answer.errors())
        if outcome in (DIFFERS, FAILED, "lost"):
            refusals.failures.append(f"{refusals.name}, {refusals.fault}, call {number}: {outcome}: {said}")
            print(refusals.failures[-1], flush=True)
    refusals.seconds += time.monotonic() - began


def judged(answer, start, workload, root, inputs, expected, server):
    left = read_state(root)
    found, before = promised(left, workload), promised(start, workload)
    lost = [path for path, content in before.items() if found.get(path) not in (content, expected.get(path))]
    lost = [path for path in lost if not re.search(workload.takes_away, path)]
    lost = [path for path in lost if path in found or path in expected]
    if lost:
        return "lost", f"exit code {answer.code}, {sorted(lost)[:6]}: {answer.err[-600:]}"
    if answer.code not in (0, 1, 2) or "Traceback" in answer.err or (answer.code and not answer.errors()):
        return FAILED, f"exit code {answer.code}: {answer.err[-1800:]}"
    again, said = restarted(left, workload, root, inputs, expected, server)
    if again == DIFFERS and _is_noted(said, answer):
        again = NOTED
    if again in (DIFFERS, FAILED):
        return again, f"exit code {answer.code} at first ({answer.err[-300:]}), then: {said}"
    first = "tolerated" if answer.code == 0 else f"exit code {answer.code}"
    return f"{first}, then {again}", said


def _is_noted(differing, answer):
    """Whether only notes of health and rollouts differ, and the command said that something could not be written."""
    said = answer.out + answer.err
    noted = all("health.jsonl" in name or "/rollouts/" in name for name in ast.literal_eval(differing))
    return noted and any(words in said for words in ("could not be", "cannot be", "not written"))


def _arguments(root, fault, number):
    return [str(root), fault.calls, number, int(fault.lasting), fault.error]


def _env(workload, root, inputs):
    return environment(inputs, workload, root)
