"""A crash at every write: record a command, and start it again on every state that a crash may leave.

The outcome of a state is one of `OUTCOMES`; the last two are failures.
"""

import os
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from egpo.files import UNFINISHED
from tests.faults.disk import crash_states, read_state, replayed
from tests.faults.record import record
from tests.faults.server import command
from tests.faults.workloads import environment

SAME, FORCED, REFUSED, DIFFERS, FAILED = "same", "same with --force", "refused", "differs", "failed"
LEFT = "same, a temporary file left"
OUTCOMES = (SAME, FORCED, LEFT, REFUSED, DIFFERS, FAILED)


@dataclass
class Crashes:
    """What was recorded and what came of it."""

    name: str
    num_operations: int
    states: list
    counts: Counter = field(default_factory=Counter)
    failures: list = field(default_factory=list)
    refusals: Counter = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def num_run(self):
        return sum(self.counts.values())

    def row(self):
        shown = ", ".join(f"{self.counts[one]} {one}" for one in OUTCOMES if self.counts[one])
        return f"{self.name}: {self.num_operations} operations, {len(self.states)} states, {self.num_run} run: {shown}"


def recorded(name, workload, place, inputs):
    """Run the command undisturbed under strace, and return the states of its crashes and the files that it promises."""
    root = place / "work"
    root.mkdir(parents=True)
    workload.start(root, inputs)
    start = read_state(root)
    env = {**os.environ, **environment(inputs, workload, root)}
    done, operations = record(command(workload.words(inputs)), root, place / "trace", env=env)
    assert done.returncode == 0, done.stderr
    (place / "trace").unlink()
    end = read_state(root)
    assert replayed(start, operations).entries == end.entries, "the record does not give the files on the disk"
    return Crashes(name, len(operations), crash_states(start, operations)), promised(end, workload)


def promised(state, workload):
    """The files that must be the same for the same command. Verdicts of self-checks are a cache, which may be empty."""
    kept = {}
    for path, content in state.entries.items():
        name = Path(path).name
        volatile = name in workload.volatile or name.startswith(".lock") or name.endswith(".lock")
        if content is not None and not volatile and "/self_checks/" not in path:
            kept[path] = content
    return kept


def crash(crashes, workload, place, inputs, expected, server, states=None, deadline=None):
    """Start the command again on the states (all of them by default), until the deadline."""
    root, began = place / "work", time.monotonic()
    for state in crashes.states if states is None else states:
        if deadline is not None and time.monotonic() > deadline:
            break
        outcome, said = restarted(state, workload, root, inputs, expected, server)
        crashes.counts[outcome] += 1
        if outcome in (DIFFERS, FAILED):
            crashes.failures.append(f"{crashes.name}, point {state.point}, {state.variant}: {outcome}: {said}")
            print(crashes.failures[-1], flush=True)
        if crashes.num_run % 50 == 0:
            print(f"{crashes.row()} so far", flush=True)
        if outcome == REFUSED:
            crashes.refusals[said.replace(str(root), "")] += 1
    crashes.seconds += time.monotonic() - began


def restarted(state, workload, root, inputs, expected, server):
    """Return the outcome of one state, and what the command said."""
    state.write(root)
    env = environment(inputs, workload, root)
    words = workload.again(root, inputs)
    answer = server.run(words, root, **env)
    outcome = SAME
    if answer.code == 2 and "--force" in answer.err:
        if read_state(root).entries != state.entries:
            return FAILED, f"refused, but changed the folder: {answer.err[-400:]}"
        outcome = FORCED
        answer = server.run([*words, "--force"], root, **env)
    if answer.code == 2 and len(answer.errors()) == 1:
        changed = _differences(promised(read_state(root), workload), promised(state, workload))
        if changed:
            return FAILED, f"refused, but changed {changed}: {answer.errors()[0]}"
        return REFUSED, answer.errors()[0]
    if answer.code != 0:
        return FAILED, f"exit code {answer.code}: {answer.err[-1500:]}"
    different = _differences(promised(read_state(root), workload), expected)
    if different and all(Path(path).name.startswith(UNFINISHED) for path in different):
        return LEFT, ""
    return (DIFFERS, f"{different}") if different else (outcome, "")


def _differences(found, expected):
    return sorted(path for path in {*found, *expected} if found.get(path) != expected.get(path))
