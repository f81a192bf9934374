"""Run programs that a model wrote in a sandbox. In: a program with its tests. Out: a report. See docs/sandbox.md.

ground_truth.py  the tests in the ground truth of a row
jobs.py          the job (limits, program, tests) and the report
selection.py     which sandbox is used: tiers.py (bubblewrap, or resource limits alone) or http.py (a remote service)
launch.py        starts the supervisor, sends the job, and enforces time and memory; cgroups.py, seccomp.py: how
charged_time.py  the time that counts against the limits: without waiting for a processor
payload.py       packs inside/, the code that runs in the sandbox
audit.py         runs the programs of escapes.py and memory_attempts.py, which try to get out
"""

from egpo.rewards.sandbox.jobs import Checks, Limits, ProgramOutcome, Report, SandboxJob, Scripts
from egpo.rewards.sandbox.selection import (
    Sandbox,
    SandboxStatus,
    choose_sandbox,
    require_sandbox,
    sandbox_status,
    working_sandbox,
)

__all__ = [
    "Checks",
    "Limits",
    "ProgramOutcome",
    "Report",
    "Sandbox",
    "SandboxJob",
    "SandboxStatus",
    "Scripts",
    "choose_sandbox",
    "require_sandbox",
    "sandbox_status",
    "working_sandbox",
]
