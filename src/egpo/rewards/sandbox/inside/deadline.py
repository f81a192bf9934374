"""The end of a test's wall-clock time."""

from __future__ import annotations

import time

from egpo.rewards.sandbox.inside.wire import read_frame

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

LATE = "late"
"""The record with which the supervisor asks the host how long the sandbox has waited for a processor in this test."""


class Deadline:
    """The time limit of a test that starts now. What the host says that the sandbox has waited is added to it."""

    def __init__(self, job: dict[str, Any], report: Callable[..., None]) -> None:
        self.report, self.asks = report, job["asks_host"]
        self.end: float = time.monotonic() + job["wall_s"]
        self.first_end = self.end

    def has_passed(self) -> bool:
        if time.monotonic() < self.end:
            return False
        if self.asks:
            self.report(LATE)
            self.end = self.first_end + float(read_frame(0))
        return time.monotonic() >= self.end
