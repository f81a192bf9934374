"""Runs programs that a model wrote, and tells what they did. The page is docs/sandbox.md."""

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
