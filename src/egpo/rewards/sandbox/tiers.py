"""The two local sandboxes.

`Bubblewrap`, the default, runs a program in namespaces, which start once for all of its tests. Of the file system, the
program sees only the interpreter, its standard library and the C libraries.

`LimitsOnly` runs a program in a subprocess with resource limits. NO SECURITY BOUNDARY: the program can read, write and
connect as you can. It is for machines without namespaces and trusted programs, and used only when it is named.
"""

import os
import secrets
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from egpo.rewards.sandbox.cgroups import CgroupParent, find_cgroups
from egpo.rewards.sandbox.jobs import MEGABYTE, Limits, Place, Report, SandboxJob, Scripts, divided_memory, whole_memory
from egpo.rewards.sandbox.launch import ENVIRONMENT, PYTHON_OPTIONS, launch
from egpo.rewards.sandbox.seccomp import one_process_filter, seccomp_filter


@cache
def interpreter() -> str:
    """Return the real executable of this interpreter, outside of any virtual environment."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


@cache
def root_options(packages: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return bubblewrap's options for a minimal read-only root, with the directories of `packages` in it."""
    options: list[str] = []
    paths = _needed(packages)
    # bubblewrap would copy the host's permissions (of /root, say), and the program's user must be able to pass through.
    for parent in sorted({str(parent) for path in paths for parent in Path(path).parents} - {"/"}):
        options += ["--perms", "0755", "--dir", parent]
    for path in paths:
        options += ["--ro-bind", path, path]
    for hidden in set(_hidden()) - {os.path.realpath(package) for package in packages}:
        options += ["--size", "4096", "--tmpfs", hidden, "--remount-ro", hidden]
    for link in ("/lib", "/lib64", "/lib32"):
        # On most systems these are links into /usr; elsewhere they are directories like any other.
        if os.path.islink(link):
            options += ["--symlink", os.readlink(link), link]
    return tuple(options)


def _needed(packages: tuple[str, ...]) -> list[str]:
    """Return the paths to bind, none of which is inside another."""
    wanted = [interpreter(), *_libraries(), *_c_libraries(), *packages]
    paths = sorted({path for path in map(os.path.realpath, wanted) if os.path.exists(path)})
    return [path for path in paths if not any(path.startswith(other + "/") for other in paths)]


def _libraries() -> list[str]:
    """Return the directories of the standard library, and the library directory of a pyenv, conda or uv Python."""
    standard = [sysconfig.get_path("stdlib"), *(path for path in sys.path if path.endswith("lib-dynload"))]
    private = Path(sys.base_prefix) / "lib"
    return standard if sys.base_prefix in ("/", "/usr") else [*standard, str(private)]


def _c_libraries() -> list[str]:
    """Return the directories of the C library and of the program loader that this process uses."""
    found = {"/usr/lib64"}
    with open("/proc/self/maps") as maps:
        for line in maps:
            path = line.rstrip("\n").partition("/")[2]
            name = path.rpartition("/")[2]
            if name.startswith(("libc.so", "libc-", "ld-linux", "ld-musl")):
                found.add("/" + path.rpartition("/")[0])
    return sorted(found) + [path for path in ("/lib64",) if not os.path.islink(path)]


def _hidden() -> list[str]:
    """Return the directories of installed packages, which programs must not see."""
    library = Path(sysconfig.get_path("stdlib"))
    return [str(path) for path in (library / "site-packages", library / "dist-packages") if path.is_dir()]


NOT_INSTALLED = "bubblewrap (`bwrap`) is not installed"
OLDEST = (0, 8, 0)
"""The first version of bubblewrap that can limit the size of a tmpfs."""


@dataclass(frozen=True)
class Bubblewrap:
    """A sandbox that runs programs in namespaces of their own: no network, no host files, no host processes."""

    limits: Limits = field(default_factory=Limits)
    private_user: bool = True
    """Give each program a user id of its own. Possible for root only."""
    packages: tuple[str, ...] = ()
    """Directories of packages that programs may import, read-only. Without any: the standard library alone."""
    executable: str | None = field(default_factory=lambda: shutil.which("bwrap"))
    """The path of `bwrap`, found once, so that the tested program is the one that runs. None if it is not installed."""
    cgroups: CgroupParent | None = field(default_factory=lambda: find_cgroups().parent)
    """The directory in which a cgroup is made for each program, to limit its memory. None: the address space is divided
    instead."""
    divide_memory: bool = False
    """Divide the address space even if there is a cgroup, which then only measures."""
    tier = "bubblewrap"

    def run(self, job: SandboxJob) -> Report:
        if self.executable is None:
            return Report((), failure=NOT_INSTALLED)
        filter_fd = _filter_pipe()
        fds = () if filter_fd is None else (filter_fd,)
        try:
            walled = filter_fd is not None
            run_as = _unused_user_id() if self.private_user and _is_real_root() else 0
            packages = tuple(map(os.path.realpath, self.packages))
            place = Place("/tmp", "/dev/stdin", private=True, walled=walled, run_as=run_as, packages=packages)
            if self.cgroups is None or self.divide_memory:
                memory, rules = divided_memory(job.limits, *_demands(job)), one_process_filter() or b""
                place = replace(place, memory=memory, one_process_filter=rules)
            return launch([self.executable, *_options(job, place, filter_fd)], job, place, fds, self.cgroups)
        except OSError as error:
            return Report((), failure=f"bubblewrap did not start: {error}")
        finally:
            for fd in fds:
                os.close(fd)


def _demands(job: SandboxJob) -> tuple[bool, int]:
    """Return whether the supervisor runs test code, and the size of its input in bytes."""
    if isinstance(job.work, Scripts):
        return False, len(job.program) + sum(map(len, job.work.stdins)) + job.work.longest_output
    return True, len(job.program) + len(job.work.setup) + sum(len(str(check)) for check in job.work.checks)


def _options(job: SandboxJob, place: Place, filter_fd: int | None) -> list[str]:
    options = ["--die-with-parent", "--new-session", "--as-pid-1"]
    options += ["--unshare-pid", "--unshare-net", "--unshare-ipc"]
    options += _privileges(place)
    # /tmp comes first: an interpreter or a package below the host's /tmp is then bound over it.
    options += _writable(job, place)
    options += root_options(place.packages)
    options += ["--remount-ro", "/", "--chdir", "/tmp", "--clearenv"]
    for name, value in ENVIRONMENT.items():
        options += ["--setenv", name, value]
    if filter_fd is not None:
        options += ["--seccomp", str(filter_fd)]
    return [*options, "--", interpreter(), *PYTHON_OPTIONS]


def _privileges(place: Place) -> list[str]:
    """Return bubblewrap's options for the program's user.

    If this process is root, each program has an unprivileged user id of its own; otherwise it has a user namespace.
    """
    if place.run_as:
        return [part for name in ("CAP_SETUID", "CAP_SETGID", "CAP_KILL") for part in ("--cap-add", name)]
    return ["--unshare-user", "--disable-userns", "--uid", "1000", "--gid", "1000"]


def _writable(job: SandboxJob, place: Place) -> list[str]:
    """Return the options for a /tmp of limited size and a /dev with the program's input; all else is read-only."""
    stdins = job.work.stdins if isinstance(job.work, Scripts) else ()
    dev_bytes = MEGABYTE + 2 * max(map(len, stdins), default=0)
    tmp_bytes = (place.memory or whole_memory(job.limits)).tmp
    options = ["--perms", "1777", "--size", str(tmp_bytes), "--tmpfs", "/tmp"]
    options += ["--size", str(dev_bytes), "--tmpfs", "/dev"]
    for device in ("/dev/null", "/dev/urandom"):
        options += ["--dev-bind", device, device]
    # POSIX semaphores and shared memory are files in /dev/shm: there they count against /tmp.
    return [*options, "--symlink", "/tmp", "/dev/shm"]


def _filter_pipe() -> int | None:
    """Return a descriptor from which bubblewrap reads the system call filter; None if this machine has no filter."""
    rules = seccomp_filter()
    if rules is None:
        return None
    reader, writer = os.pipe()
    os.write(writer, rules)
    os.close(writer)
    return reader


def _unused_user_id() -> int:
    """Return a user id for one program, random in a range without accounts, so that no two programs share it.

    Under root's own id the limit on processes would have no effect, even in a user namespace.
    """
    return (1 << 30) + secrets.randbelow(1 << 29)


@cache
def _is_real_root() -> bool:
    """Return whether this is root of the machine, and not of a container with few user ids."""
    with open("/proc/self/uid_map") as uid_map:
        return os.geteuid() == 0 and uid_map.read().split() == ["0", "0", "4294967295"]


def bubblewrap_version(executable: str | None) -> tuple[int, ...] | None:
    """Return the version of the `bwrap` at this path; None if it is unknown."""
    if executable is None:
        return None
    try:
        said = subprocess.run([executable, "--version"], capture_output=True, text=True, timeout=10, check=True).stdout
        return tuple(int(part) for part in said.split()[-1].split("."))
    except (OSError, ValueError, IndexError, subprocess.SubprocessError):
        return None


@dataclass(frozen=True)
class LimitsOnly:
    """A sandbox that only limits time, memory, file size and output of a program, and kills the processes that it
    leaves."""

    limits: Limits = field(default_factory=Limits)
    packages: tuple[str, ...] = ()
    cgroups: CgroupParent | None = field(default_factory=lambda: find_cgroups().parent)
    """The directory in which a cgroup is made for each program. None: resident memory is measured every 0.1 s."""
    tier = "limits"

    def run(self, job: SandboxJob) -> Report:
        try:
            with tempfile.TemporaryDirectory(prefix="egpo-limits-", ignore_cleanup_errors=True) as folder:
                work_dir = os.path.join(folder, "work")
                os.mkdir(work_dir)
                place = Place(work_dir, os.path.join(folder, "stdin"), packages=self.packages)
                return launch([interpreter(), *PYTHON_OPTIONS], job, place, cgroups=self.cgroups)
        except OSError as error:
            return Report((), failure=f"the subprocess did not start: {error}")
