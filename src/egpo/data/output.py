"""Files that appear whole or not at all."""

import os
import tempfile
from pathlib import Path
from types import TracebackType

from egpo.errors import InputError

_UNFINISHED = ".egpo-"
"""Prefix of files under way; what a killed process left behind under it is no data."""


class StagedFiles:
    """A set of files for one directory: written beside their final names, renamed in one go by `commit`.

    Until then, and after any failure, the directory is as it was. A full disk, or a directory that may not be
    written, is reported as the user's to mend. A directory that holds other data is refused unless `force`,
    which replaces the files of the same names and leaves the others alone.
    """

    def __init__(self, out: Path, *, force: bool) -> None:
        self.out, self._force = out, force
        self._staged: dict[str, Path] = {}
        self._made: list[Path] = []

    def __enter__(self) -> "StagedFiles":
        refuse_other_data(self.out, force=self._force)
        missing = [path for path in (self.out, *self.out.parents) if not path.exists()]
        try:
            for path in reversed(missing):
                path.mkdir()
                self._made.insert(0, path)
        except OSError as error:
            self._discard()
            raise _cannot_write(self.out, error) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._discard()
        if isinstance(error, OSError):
            raise _cannot_write(self.out, error) from error

    def stage(self, name: str) -> Path:
        """Where to write the file that will be called `name`."""
        handle, path = tempfile.mkstemp(prefix=f"{_UNFINISHED}{name}.", dir=self.out)
        os.close(handle)
        os.chmod(path, 0o666 & ~_umask())
        self._staged[name] = Path(path)
        return self._staged[name]

    def commit(self) -> None:
        """Every byte on the disk first; then the names, in the order of staging; then the directory itself."""
        for path in self._staged.values():
            _fsync(path)
        for name, path in self._staged.items():
            os.replace(path, self.out / name)
        _fsync(self.out)
        self._staged, self._made = {}, []

    def _discard(self) -> None:
        for path in self._staged.values():
            path.unlink(missing_ok=True)
        for path in self._made:
            if not any(path.iterdir()):
                path.rmdir()


def refuse_other_data(out: Path, *, force: bool) -> None:
    """Raises where `out` is no directory, or holds anything and `force` is off."""
    if out.exists() and not out.is_dir():
        raise InputError("is a file", where=str(out), fix="give a directory as --out")
    if force or not out.exists():
        return
    held = sorted(path.name for path in out.iterdir() if not path.name.startswith(_UNFINISHED))
    if held:
        raise InputError(
            f"already holds {', '.join(held[:3])}{' and more' if len(held) > 3 else ''}",
            where=str(out),
            fix="choose another --out, or replace with --force",
        )


def _cannot_write(out: Path, error: OSError) -> InputError:
    return InputError(
        f"cannot write there ({error.strerror or error}); what was there is unchanged",
        where=str(out),
        fix="free some space or mend the permissions, or choose another --out",
    )


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
