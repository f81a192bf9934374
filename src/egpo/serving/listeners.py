"""Who listens on a port: between the look at it and the start of a server another's may have taken it, and answers."""

from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")
_LISTENS = "0A"


def session_listens(session: int, port: int) -> bool:
    """Whether a process of that session does. True where the system does not show it (it is Linux that has /proc)."""
    tables = [path for name in ("tcp", "tcp6") if (path := _PROC / "net" / name).is_file()]
    if not tables:
        return True
    sockets = {f"socket:[{inode}]" for table in tables for inode in _listeners(table, port)}
    return any(not sockets.isdisjoint(_open_files(pid)) for pid in _processes_of(session))


def _listeners(table: Path, port: int) -> Iterator[str]:
    """Inodes of the sockets. A line: `0: 0100007F:1F90 00000000:0000 0A ...`, the inode is its tenth word."""
    for line in table.read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == _LISTENS and int(words[1].rpartition(":")[2], 16) == port:
            yield words[9]


def _processes_of(session: int) -> Iterator[Path]:
    for process in _PROC.glob("[0-9]*"):
        try:
            words = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        if words[3] == str(session):
            yield process


def _open_files(process: Path) -> set[str]:
    try:
        return {str(handle.readlink()) for handle in (process / "fd").iterdir()}
    except OSError:  # it ended meanwhile, or a file was closed: the next look will tell
        return set()
