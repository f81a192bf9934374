"""Writes a set of files completely or not at all: first into a temporary folder, from which they are then moved.

Each temporary folder is locked by its process. The lock ends with the process, even if it is killed, so that abandoned
folders can be recognised and removed.
"""

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from egpo.errors import InputError
from egpo.files import UNFINISHED, fsync_path, lock_file

_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)  # Windows has neither


class StagingFolder:
    """A new temporary folder inside `directory`, locked until it is removed or the process ends."""

    def __init__(self, directory: Path) -> None:
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=directory))
            # Before the folder is locked, another process may remove it as abandoned: then a new one is created.
            with suppress(FileNotFoundError):
                self._handle = os.open(self.path, os.O_RDONLY)
                _lock(self._handle, wait=True)
                if self.path.exists():
                    return
                os.close(self._handle)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._handle)


def remove_abandoned(directory: Path) -> None:
    """Remove the temporary folders in `directory` whose processes have ended.

    On a file system without locks, no folder is removed, because it is unknown which processes have ended.
    """
    for path in directory.glob(f"{UNFINISHED}*"):
        try:
            handle = os.open(path, _FOLDER)
        except OSError:
            continue
        if _lock(handle):
            shutil.rmtree(path, ignore_errors=True)
        os.close(handle)


def _lock(handle: int, *, wait: bool = False) -> bool:
    try:
        lock_file(handle, wait=wait)
    except OSError:
        return False
    return True


class StagedFiles:
    """A set of files for one folder: they are written to a temporary folder inside it, and moved together by `commit`.

    Before `commit`, and after any failure, the folder is unchanged. A process that is killed leaves its temporary
    folder, which the next process that writes to the same folder removes. InputError is raised if the files cannot be
    written, or if the folder is not empty. With `force`, a folder that is not empty is allowed: files of the same names
    are replaced, and others are kept.
    """

    def __init__(self, out: Path, *, force: bool) -> None:
        self.out, self._force = out, force
        self._staged: dict[str, Path] = {}
        self._folder: StagingFolder | None = None
        self._made: list[Path] = []

    def __enter__(self) -> "StagedFiles":
        refuse_other_data(self.out, force=self._force)
        missing = [path for path in (self.out, *self.out.parents) if not path.exists()]
        try:
            for path in reversed(missing):
                path.mkdir()
                self._made.insert(0, path)
            remove_abandoned(self.out)
            self._folder = StagingFolder(self.out)
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
        """Return the temporary path to which the caller must write the file `name`."""
        assert self._folder is not None
        self._staged[name] = self._folder.path / name
        return self._staged[name]

    def commit(self) -> None:
        """Flush all files to disk, and move them to the folder in the order in which they were staged.

        If one cannot be moved, those that were moved before it are taken back.
        """
        for path in self._staged.values():
            fsync_path(path)
        moved: list[tuple[Path, Path | None]] = []
        try:
            for name, path in self._staged.items():
                earlier = _linked(self.out / name, path.with_name(f"{name}.earlier"))
                os.replace(path, self.out / name)
                moved.append((self.out / name, earlier))
            fsync_path(self.out)
        except OSError:
            _take_back(moved)
            raise
        self._staged, self._made = {}, []

    def _discard(self) -> None:
        if self._folder is not None:
            self._folder.remove()
        for path in self._made:
            if not any(path.iterdir()):
                path.rmdir()


def _linked(path: Path, link: Path) -> Path | None:
    """Give a file a second name, from which it can be restored; None if there is no such file."""
    if not path.exists():
        return None
    try:
        os.link(path, link)
    except OSError:  # a file system without links
        shutil.copy2(path, link)
    return link


def _take_back(moved: list[tuple[Path, Path | None]]) -> None:
    with suppress(OSError):  # on a disk that has become read-only nothing can be taken back
        for path, earlier in reversed(moved):
            if earlier is None:
                path.unlink()
            else:
                os.replace(earlier, path)


def refuse_other_data(out: Path, *, force: bool) -> None:
    """Raise InputError if `out` is not a directory, or if it is not empty and `force` is off."""
    if out.exists() and not out.is_dir():
        raise InputError("this is a file, not a folder", where=str(out), fix="choose a folder with --out")
    if force or not out.exists():
        return
    held = sorted(path.name for path in out.iterdir() if not path.name.startswith(UNFINISHED))
    if held:
        raise InputError(
            f"the folder already holds {', '.join(held[:3])}{' and more' if len(held) > 3 else ''}",
            where=str(out),
            fix="choose another folder with --out, or replace files with --force",
        )


def _cannot_write(out: Path, error: OSError) -> InputError:
    return InputError(
        f"the folder cannot be written ({error.strerror or error}); existing files are unchanged",
        where=str(out),
        fix="free some space, change the permissions, or choose another folder with --out",
    )
