"""A short form of `python -m tests.faults.sandbox_load`, without the host's memory: others use that meanwhile."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from egpo.rewards.sandbox import Limits, sandbox_status
from egpo.rewards.sandbox.cgroups import _owner, find_cgroups
from egpo.rewards.sandbox.inside.containment import descendants
from egpo.rewards.sandbox.tiers import Bubblewrap
from tests.faults.sandbox_load import (
    HONEST,
    MODES,
    Judged,
    Measured,
    Round,
    _computes,
    _right,
    hostile_programs,
    kept_promise,
    row_of,
    run_round,
)
from tests.waiting import all_end

LIMITS = Limits(wall_s=1.0, cpu_s=2, memory_mb=256)
FEW = (
    "shared pages dropped from the page tables",
    "many processes",
    "socket buffers",
    "forks 1",
    "files 2",
    "too many empty files",
    "output 0",
    "endless 0",
)
"""One of each kind."""


@pytest.mark.parametrize("limited_by", ["a cgroup", "the address space"])
def test_honest_programs_beside_hostile_ones_are_right_and_nothing_is_left(limited_by: str) -> None:
    status = sandbox_status("bubblewrap")
    if not status.ok:
        pytest.skip(f"{status.detail}; {status.fix}")
    if limited_by == "a cgroup" and find_cgroups().parent is None:
        pytest.skip(find_cgroups().why_not)
    sandbox = Bubblewrap(LIMITS, divide_memory=limited_by != "a cgroup")
    hostile = [program for program in hostile_programs(LIMITS.memory_mb) if program.name in FEW]
    assert len(hostile) == len(FEW)
    honest = (_right("0.5 s of processor time", _computes(0.5)), *HONEST[1:4])
    before = set(descendants(os.getpid()))
    judged = run_round(sandbox, 2, hostile, honest)
    assert [one for one in judged if one.kind == "honest" and not one.correct] == []
    assert [one for one in judged if one.kind != "honest" and (one.correct or one.failed or one.escaped)] == []
    assert all_end(set(descendants(os.getpid())) - before)
    if parent := find_cgroups().parent:
        assert not list(Path(parent.path).glob(f"egpo-sandbox-{_owner(os.getpid())}-*"))


def judged_as(kind: str, correct: bool) -> Judged:
    return Judged(HONEST[0].name, kind, correct, False, "", False, wall_s=9.0, charged_s=3.0)


HELD = Measured(
    MODES[0], 0, [judged_as("honest", True)],
    [Round([judged_as("honest", True), judged_as("memory", False)], 1.0, 512 * 1.05, 0.01)], {},
)  # fmt: skip


@pytest.mark.parametrize(
    "broken",
    [
        replace(HELD, left={"processes": 1}),
        replace(HELD, rounds=[*HELD.rounds, replace(HELD.rounds[0], rose_by_mb=538.0)]),
        replace(HELD, rounds=[replace(HELD.rounds[0], judged=[judged_as("honest", False)])]),
        replace(HELD, rounds=[replace(HELD.rounds[0], judged=[judged_as("memory", True)])]),
        replace(HELD, rounds=[replace(HELD.rounds[0], judged=[replace(judged_as("time", False), failed=True)])]),
        replace(HELD, rounds=[replace(HELD.rounds[0], judged=[replace(judged_as("time", False), escaped=True)])]),
    ],
)
def test_each_kind_of_broken_promise_is_seen(broken: Measured) -> None:
    assert kept_promise(HELD, num_at_once=2, memory_mb=256)
    assert not kept_promise(broken, num_at_once=2, memory_mb=256)
    assert "538" in row_of(HELD, 2, 256)
