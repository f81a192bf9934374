"""Memory cgroups, in which the kernel counts all memory of a sandbox and kills its processes at the limit.

The kernel counts the pages of all processes (also shared pages, and pages that are no longer in any page table), files
in memory, pipes, socket buffers, page tables and stacks. A cgroup is a directory below the cgroup of this process
(version 1), or beside it (version 2, where a cgroup that contains processes can have no children with limits). Its name
identifies the process that made it, so that a later process can remove the cgroups of a process that was killed.
"""

import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path

_PREFIX = "egpo-sandbox"
_ENTER = ("/bin/sh", "-c", 'echo 0 >"$0" && exec "$@"')
_REMOVE_S = 2.0
_UNIQUE = count()


@dataclass(frozen=True)
class CgroupParent:
    """A directory in which memory cgroups can be made: `version` 1 or 2 of the kernel's interface."""

    path: str
    version: int

    def make(self, limit_bytes: int | None) -> "Cgroup":
        """Make a cgroup with this limit on memory and swap together; with None it only measures."""
        cgroup = Cgroup(f"{self.path}/{_PREFIX}-{_owner(os.getpid())}-{next(_UNIQUE)}", self.version)
        os.mkdir(cgroup.path)
        try:
            if limit_bytes is not None:
                cgroup.limit(limit_bytes)
        except OSError:
            cgroup.remove()
            raise
        return cgroup


@dataclass(frozen=True)
class Cgroup:
    """The memory cgroup of one sandbox."""

    path: str
    version: int

    def limit(self, limit_bytes: int) -> None:
        if self.version == 2:
            self._write("memory.max", limit_bytes)
            with suppress(OSError):  # no swap in this kernel
                self._write("memory.swap.max", 0)
            self._write("memory.oom.group", 1)
            return
        # Kernels before 5.x count kernel memory only if it has a limit; later ones refuse to set one.
        with suppress(OSError):
            self._write("memory.kmem.limit_in_bytes", limit_bytes)
        self._write("memory.limit_in_bytes", limit_bytes)
        with suppress(OSError):  # no accounting of swap
            self._write("memory.memsw.limit_in_bytes", limit_bytes)

    def entering(self, command: list[str]) -> list[str]:
        """Return the command that starts `command` inside the cgroup, so that no part of it runs outside."""
        return [*_ENTER, f"{self.path}/cgroup.procs", *command]

    def killed_for_memory(self) -> bool:
        """Return whether the kernel killed a process because of this cgroup's limit, and not of one above it."""
        if self.version == 2:
            return self._counter("memory.events", "oom") > 0 and self._counter("memory.events", "oom_kill") > 0
        # The peak is used because Linux 6.18 leaves `memory.failcnt` at 0.
        met = self.peak_bytes() >= self._number("memory.limit_in_bytes") * 15 // 16
        return met and self._counter("memory.oom_control", "oom_kill") > 0

    def peak_bytes(self) -> int:
        """Return the peak memory in bytes; 0 if the kernel does not report it (version 2 before Linux 5.19)."""
        return self._number("memory.peak" if self.version == 2 else "memory.max_usage_in_bytes")

    def remove(self) -> None:
        """Kill the processes left inside and remove the directory. `remove_stale` removes a busy one later."""
        deadline = time.monotonic() + _REMOVE_S
        while True:
            try:
                os.rmdir(self.path)
                return
            except FileNotFoundError:
                return
            except OSError:
                if time.monotonic() > deadline:
                    return
            for pid in self.members():
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.002)

    def members(self) -> list[int]:
        try:
            return [int(pid) for pid in Path(self.path, "cgroup.procs").read_text().split() if pid != "0"]
        except OSError:
            return []

    def _write(self, name: str, value: int) -> None:
        Path(self.path, name).write_text(str(value))

    def _number(self, name: str) -> int:
        try:
            return int(Path(self.path, name).read_text())
        except (OSError, ValueError):
            return 0

    def _counter(self, name: str, key: str) -> int:
        try:
            lines = Path(self.path, name).read_text().splitlines()
        except OSError:
            return 0
        return sum(int(line.split()[1]) for line in lines if line.split()[:1] == [key])


@dataclass(frozen=True)
class Found:
    """The directory in which memory cgroups can be made, or in `why_not` the reason why they cannot."""

    parent: CgroupParent | None
    why_not: str = ""


@cache
def find_cgroups() -> Found:
    """Find a directory for cgroups, by starting a process in a new one; also remove cgroups of killed processes."""
    candidates = _candidates(Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text())
    why_not = "no memory controller of cgroups is mounted"
    for parent in candidates:
        if problem := _problem(parent):
            why_not = problem
            continue
        remove_stale(parent)
        return Found(parent)
    return Found(None, why_not)


def _problem(parent: CgroupParent) -> str:
    """Return why a cgroup cannot be made, limited and entered here; "" if it can."""
    try:
        if parent.version == 2 and "memory" not in Path(parent.path, "cgroup.subtree_control").read_text().split():
            return f"{parent.path} does not enable the memory controller for its children (cgroup.subtree_control)"
        cgroup = parent.make(64 << 20)
    except OSError as error:
        return f"{parent.path}: {error.strerror}"
    try:
        entered = subprocess.run(cgroup.entering(["/bin/sh", "-c", ":"]), capture_output=True, timeout=10, check=False)
        return "" if entered.returncode == 0 else f"{parent.path}: a process cannot enter a new cgroup"
    except subprocess.TimeoutExpired:
        return f"{parent.path}: a process did not enter a new cgroup within 10 s"
    except OSError as error:
        return f"/bin/sh: {error.strerror}"
    finally:
        cgroup.remove()


def _candidates(own: str, mountinfo: str) -> list[CgroupParent]:
    """Return the directories to try, from the contents of /proc/self/cgroup and /proc/self/mountinfo."""
    paths = {}
    for line in own.splitlines():
        _, controllers, path = line.split(":", 2)
        paths[tuple(controllers.split(","))] = path
    first = next((path for controllers, path in paths.items() if "memory" in controllers), None)
    second = paths.get(("",))
    found: list[CgroupParent] = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        root, mount = before.split()[3:5]
        kind, *_, options = after.split()
        if kind == "cgroup" and "memory" in options.split(",") and first is not None:
            found.append(CgroupParent(_below(mount, root, first), 1))
        elif kind == "cgroup2" and first is None and second is not None:
            here = _below(mount, root, second)
            # First the cgroup of this process, which works only in the root of the hierarchy; then the one above it.
            found.append(CgroupParent(here, 2))
            if here != mount:
                found.append(CgroupParent(os.path.dirname(here), 2))
    return found


def _below(mount: str, root: str, path: str) -> str:
    """Return the directory of the cgroup `path`, if `root` of the hierarchy is mounted at `mount`."""
    inside = path[len(root) :] if root != "/" and (path + "/").startswith(root + "/") else path
    return (mount + "/" + inside.strip("/")).rstrip("/")


def remove_stale(parent: CgroupParent) -> None:
    """Remove the cgroups of processes that were killed before they could do it themselves."""
    namespace = _namespace()
    for path in Path(parent.path).glob(f"{_PREFIX}-{namespace}-*"):
        pid = path.name.removeprefix(f"{_PREFIX}-{namespace}-").split("-")[0]
        if pid.isdigit() and not path.name.startswith(f"{_PREFIX}-{_owner(int(pid))}-"):
            Cgroup(str(path), parent.version).remove()


def _owner(pid: int) -> str:
    """Return a text that identifies a process. No later process with the same number, and no process of another
    container, has the same text."""
    try:
        # The 22nd field is the start time. It is counted from the end of the command's name, which may have spaces.
        started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        started = "gone"
    return f"{_namespace()}-{pid}-{started}"


@cache
def _namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino
