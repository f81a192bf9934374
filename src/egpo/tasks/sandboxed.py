"""Does judging a task's responses run programs, and is there a sandbox for them?"""

from collections.abc import Mapping
from typing import Any

from egpo.rewards.sandbox import require_sandbox
from egpo.tasks.code import Code
from egpo.tasks.mixed import Mixed
from egpo.tasks.protocol import Task


def sandbox_tier(task: Task, settings: Mapping[str, Any]) -> str | None:
    """The tier that programs will run in; None where none will. An error where there should be a sandbox and none
    works: found here it costs nothing, and later every response."""
    return require_sandbox(settings.get("sandbox")).tier if isinstance(task, Code | Mixed) else None
