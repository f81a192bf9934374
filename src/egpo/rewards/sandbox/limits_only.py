"""A subprocess under resource limits. NO SECURITY BOUNDARY: a program reads, writes and connects as you can.

For machines without namespaces, and for programs that are trusted. It runs only when asked for by name.
"""

import os
import tempfile
from dataclasses import dataclass, field

from egpo.rewards.sandbox.cgroups import CgroupParent, find_cgroups
from egpo.rewards.sandbox.job import Job, Place, Report
from egpo.rewards.sandbox.launch import PYTHON_OPTIONS, launch
from egpo.rewards.sandbox.limits import Limits
from egpo.rewards.sandbox.root import interpreter


@dataclass(frozen=True)
class LimitsOnly:
    """Bounds time, memory, file size and output of a program, and kills what it leaves behind. Nothing more."""

    limits: Limits = field(default_factory=Limits)
    packages: tuple[str, ...] = ()
    cgroups: CgroupParent | None = field(default_factory=lambda: find_cgroups().parent)
    """Where the cgroup of each program is made. None: resident memory is looked at ten times a second."""
    tier = "limits"

    def run(self, job: Job) -> Report:
        try:
            with tempfile.TemporaryDirectory(prefix="egpo-limits-", ignore_cleanup_errors=True) as folder:
                work_dir = os.path.join(folder, "work")
                os.mkdir(work_dir)
                place = Place(work_dir, os.path.join(folder, "stdin"), packages=self.packages)
                return launch([interpreter(), *PYTHON_OPTIONS], job, place, cgroups=self.cgroups)
        except OSError as error:
            return Report((), failure=f"the subprocess did not start: {error}")
