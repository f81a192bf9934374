"""What a run ran on and with, asked of the system; no torch, and nothing that can fail."""

import os
import platform
import subprocess
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

PACKAGES = ("egpo", "torch", "transformers", "tokenizers", "numpy", "pyarrow", "pydantic", "peft", "triton", "verl")
"""Whose versions can change a figure. Those that are not installed are left out."""
_GIT_LIMIT_S = 10


@dataclass(frozen=True)
class Git:
    """The state of the repository that the command was given in; `dirty`: tracked files differ from the commit."""

    commit: str
    dirty: bool


@dataclass(frozen=True)
class Hardware:
    """`cores` are those this process may use; `threads` those that it computes with; no `gpu`: the CPU computed."""

    cpu: str
    cores: int
    memory_gib: float
    threads: int | None = None
    gpu: str | None = None


def installed_versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def hardware(threads: int | None = None, gpu: str | None = None) -> Hardware:
    return Hardware(_cpu_model(), _num_cores(), _memory_gib(), threads, gpu)


def git_state(directory: Path) -> Git | None:
    """None where there is no git, no repository or no commit, or where git takes too long."""
    commit = _git(directory, "rev-parse", "HEAD")
    changes = _git(directory, "status", "--porcelain", "--untracked-files=no")
    return None if commit is None or changes is None else Git(commit, bool(changes))


def _git(directory: Path, *words: str) -> str | None:
    command = ["git", "-C", str(directory), *words]
    # Without it `status` takes a lock in the user's repository.
    environment = os.environ | {"GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_LIMIT_S, env=environment)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _num_cores() -> int:
    # macOS has no affinities.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _memory_gib() -> float:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
