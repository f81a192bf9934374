"""Runs programs that a model wrote, and tells what they did. The page is docs/sandbox.md."""

from egpo.rewards.sandbox.choose import (
    Sandbox,
    SandboxStatus,
    choose_sandbox,
    require_sandbox,
    sandbox_status,
    working_sandbox,
)
from egpo.rewards.sandbox.job import Checks, Job, Limits, Outcome, Report, Scripts

__all__ = [
    "Checks",
    "Job",
    "Limits",
    "Outcome",
    "Report",
    "Sandbox",
    "SandboxStatus",
    "Scripts",
    "choose_sandbox",
    "require_sandbox",
    "sandbox_status",
    "working_sandbox",
]
