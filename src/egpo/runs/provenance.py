"""The file `provenance.json`: what is needed to reproduce a run, and a record of each resumption.

Versions, hardware and git state are read from the system, without torch. A value that cannot be read does not stop the
run.
"""

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from egpo.benchmark_cases import Cases, joined_cases
from egpo.errors import InputError, warn_once
from egpo.files import ROWS, write_atomically
from egpo.fingerprints import code_digest, sealed, unsealed

PACKAGES = ("egpo", "torch", "transformers", "tokenizers", "numpy", "pyarrow", "pydantic", "peft", "triton", "verl")
"""Packages whose version can change a result. Packages that are not installed are left out."""
CODE_VERSION = "egpo code"
"""The name, among the versions, of the digest of egpo's own source: the commit is unknown outside of a repository."""
_GIT_LIMIT_S = 10


@dataclass(frozen=True)
class Git:
    """The git repository of the working directory. `dirty`: tracked files differ from the commit."""

    commit: str
    dirty: bool


@dataclass(frozen=True)
class Hardware:
    """The hardware of the machine. `cores`: usable by this process; `threads`: used for computation; `gpu`: its name,
    or None if the run uses the CPU."""

    cpu: str
    cores: int
    memory_gib: float
    threads: int | None = None
    gpu: str | None = None


_PACKAGE = Path(__file__).resolve().parents[1]
_code_digest = lru_cache(maxsize=1)(code_digest)


def installed_versions() -> dict[str, str]:
    """Return the versions of Python and of `PACKAGES`, and as `egpo code` a digest of the source of egpo."""
    found = {"python": platform.python_version(), CODE_VERSION: _code_digest(_PACKAGE)}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def hardware(threads: int | None = None, gpu: str | None = None) -> Hardware:
    return Hardware(_cpu_model(), _num_cores(), _memory_gib(), threads, gpu)


def git_state(directory: Path) -> Git | None:
    """Return the commit of a repository and whether files differ from it; None if git cannot tell within 10 s."""
    commit = _git(directory, "rev-parse", "HEAD")
    changes = _git(directory, "status", "--porcelain", "--untracked-files=no")
    return None if commit is None or changes is None else Git(commit, bool(changes))


def _git(directory: Path, *words: str) -> str | None:
    command = ["git", "-C", str(directory), *words]
    # Without this variable, `git status` takes a lock in the user's repository.
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
    # macOS has no CPU affinity.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _memory_gib() -> float:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)


@dataclass(frozen=True)
class Launch:
    """One process of the run: start time (UTC), the last step before it, command, versions, hardware and sandbox."""

    time: str
    after_step: int
    command: tuple[str, ...]
    versions: Mapping[str, str]
    git: Git | None
    hardware: Hardware
    sandbox: str | None


@dataclass(frozen=True)
class Provenance:
    """The origin of a run. `start` is the first launch, `resumptions` are the later ones.

    `data` has a digest for each file, split or model. A digest that begins with `rows:` is of the rows; any other is of
    generated problems or, in runs of earlier versions, of the bytes of a file. `benchmark_cases` are the ids of the
    cases of public benchmarks that the model was trained on, in this run or before, by benchmark.
    """

    seed: int
    data: Mapping[str, str]
    start: Launch
    resumptions: tuple[Launch, ...] = field(default=())
    benchmark_cases: Cases = field(default_factory=dict)


def describe_launch(
    *, after_step: int = 0, threads: int | None = None, gpu: str | None = None, sandbox: str | None = None
) -> Launch:
    """Describe this process. The caller passes `threads`, `gpu` and `sandbox`, which need torch or the sandbox."""
    return Launch(
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        after_step=after_step,
        command=tuple(sys.argv),
        versions=installed_versions(),
        git=git_state(Path.cwd()),
        hardware=hardware(threads, gpu),
        sandbox=sandbox,
    )


def write_provenance(path: Path, provenance: Provenance) -> None:
    value = asdict(provenance)
    if not provenance.benchmark_cases:
        del value["benchmark_cases"]
    write_atomically(path, json.dumps(sealed(value), indent=2, ensure_ascii=False) + "\n")


def read_provenance(path: Path) -> Provenance:
    try:
        value = unsealed(json.loads(path.read_text(encoding="utf-8")))
        return Provenance(
            seed=value["seed"],
            data=value["data"],
            start=_launch(value["start"]),
            resumptions=tuple(_launch(launch) for launch in value["resumptions"]),
            benchmark_cases=joined_cases(value.get("benchmark_cases") or {}),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        what = f"the provenance cannot be read ({type(error).__name__}: {error})"
        raise InputError(what, where=str(path), fix="restore the file, or start a new run") from error


def record_resumption(
    path: Path, launch: Launch, data: Mapping[str, str], files: Mapping[str, Path] | None = None
) -> Provenance:
    """Add this process to the provenance of a resumed run.

    If the data differs, raise InputError. If the machine or a package version differs, warn: results may differ in
    their last bits. `files` are the paths of the data: a run of an earlier version recorded the digest of a file's
    bytes, so the bytes are compared, and the digest is then replaced by that of the rows.
    """
    known = read_provenance(path)
    older = [name for name in files or {} if _is_older(known.data.get(name), data.get(name))]
    _refuse_other_data(path, known.data, {**data, **{name: _bytes_digest((files or {})[name]) for name in older}})
    known = replace(known, data={**known.data, **{name: data[name] for name in older}})
    changes = _changes(_computing(known.start), _computing(launch))
    if changes:
        message = (
            f"{path.parent}: the run is resumed in a different environment ({changes}); results may differ in their "
            "last bits"
        )
        warn_once("resumed in a different environment", message)
    now = replace(known, resumptions=(*known.resumptions, launch))
    write_provenance(path, now)
    return now


def _refuse_other_data(path: Path, old: Mapping[str, str], new: Mapping[str, str]) -> None:
    if changes := _changes(old, new):
        fix = "restore the original data, or start a new run with name=..."
        raise InputError(f"the data has changed since the run started ({changes})", where=str(path.parent), fix=fix)


def _is_older(old: str | None, new: str | None) -> bool:
    return old is not None and new is not None and new.startswith(ROWS) and not old.startswith(ROWS)


def _bytes_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _computing(launch: Launch) -> dict[str, str]:
    """Return the versions and the hardware that may change the last bits of a result."""
    machine = {"cpu": launch.hardware.cpu, "threads": str(launch.hardware.threads), "gpu": str(launch.hardware.gpu)}
    return {**launch.versions, **machine}


def _changes(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return ", ".join(f"{name}: {_short(old.get(name))} -> {_short(new.get(name))}" for name in names)


def _short(value: str | None) -> str:
    return "nothing" if value is None else value if len(value) <= 40 else f"{value[:12]}…"


def _launch(value: Mapping[str, Any]) -> Launch:
    git = None if value["git"] is None else Git(**value["git"])
    fields = {**value, "git": git, "hardware": Hardware(**value["hardware"]), "command": tuple(value["command"])}
    return Launch(**fields)
