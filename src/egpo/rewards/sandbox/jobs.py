"""What goes into a sandbox and what comes out: limits, the program with its tests, and the report."""

import marshal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from egpo.errors import InputError

MEGABYTE = 1 << 20


@dataclass(frozen=True)
class Limits:
    """The limits of one sandboxed program, each a positive number."""

    wall_s: float = 6.0
    """Wall-clock seconds for one test."""
    cpu_s: int = 5
    """Seconds of processor time for each process of the program."""
    total_s: float = 60.0
    """Wall-clock seconds for all tests of a program together."""
    memory_mb: int = 1024
    """Memory of the whole sandbox: its processes, its files, and what the kernel keeps for them."""
    processes: int = 16
    """Processes and threads alive at once. Without a cgroup a program is one process, and these are its threads."""
    tmp_mb: int = 64
    """Size of the private /tmp, which lives in memory."""
    file_mb: int = 16
    """Size of one file."""
    files: int = 20_000
    """Files, directories and links in the private file systems: each costs the kernel a kilobyte, empty or not."""
    output_mb: int = 1
    """Standard output of one test, in addition to the length of the longest expected output."""
    open_files: int = 64
    """File descriptors of one process."""

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e9:
                raise InputError(f"`{value}` is not a positive number", where=f"sandbox limits [{limit.name}]")


@dataclass(frozen=True)
class MemoryShares:
    """Bytes of `memory_mb` for each part of a sandbox. `supervisor` is 0 if a cgroup limits all parts together."""

    program: int
    supervisor: int
    tmp: int


_KERNEL_BYTES = 64 * MEGABYTE
"""Reserve without a cgroup for memory that no limit counts: page tables (at most 24 MB), pipes, sockets, files."""
_SCRIPT_SUPERVISOR_BYTES = 48 * MEGABYTE


def whole_memory(limits: Limits) -> MemoryShares:
    """Return the division with a cgroup: every process may use all of it, and the kernel counts the sum."""
    return MemoryShares(int(limits.memory_mb * MEGABYTE), 0, int(limits.tmp_mb * MEGABYTE))


def divided_memory(limits: Limits, tests_run_inside: bool, input_bytes: int) -> MemoryShares:
    """Return the division without a cgroup: a fixed address space for each part, `memory_mb` in sum.

    The program is a single process, which gets its part whole. `tests_run_inside`: the supervisor runs test code on
    values from the program, and gets a quarter. `input_bytes`: size of the supervisor's input, of which it holds
    copies. Below 256 MB the program's part is a quarter, and the sum may be more than `memory_mb`.
    """
    whole = int(limits.memory_mb * MEGABYTE)
    tmp = min(int(limits.tmp_mb * MEGABYTE), whole // 4)
    supervisor = max(_SCRIPT_SUPERVISOR_BYTES, whole // 4 if tests_run_inside else 0) + 4 * input_bytes
    return MemoryShares(max(whole - tmp - supervisor - _KERNEL_BYTES, whole // 4), supervisor, tmp)


# The oldest format that every Python from 3.4 on reads: a service may run another version than the host.
_MARSHAL_VERSION = 4


@dataclass(frozen=True)
class Scripts:
    """Run the whole program once for each standard input. `longest_output` is the size of the longest right answer."""

    stdins: tuple[bytes, ...]
    longest_output: int = 0
    kind = "scripts"

    @property
    def size(self) -> int:
        return len(self.stdins)


@dataclass(frozen=True)
class Checks:
    """Load the program once and run each check against it: a piece of test code, or a call with its expected values.

    `names` are taken from the program, `modules` are standard modules that the checks use without an import.
    """

    checks: tuple[str | Mapping[str, Any], ...]
    names: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    setup: str = ""
    kind = "checks"

    @property
    def size(self) -> int:
        return len(self.checks)


@dataclass(frozen=True)
class SandboxJob:
    """A program and what to do with it. `stop_early`: stop after the first test that has certainly failed."""

    program: str
    work: Scripts | Checks
    limits: Limits = field(default_factory=Limits)
    stop_early: bool = False


@dataclass(frozen=True)
class Place:
    """Settings of the supervisor (the process that runs the programs) that depend on the sandbox around it.

    `private`: the supervisor has its own process namespace, and may kill every process in it.
    `walled`: the sandbox already prevents its processes from reading each other's memory.
    `run_as`: the user id that programs run as; 0: the same as the supervisor's.
    `packages`: directories from which a program can import, besides the standard library.
    `memory`: the memory limit of each part of the sandbox; None: what `whole_memory` returns.
    `one_process_filter`: a system call filter for the program, used if no cgroup limits its memory.
    """

    work_dir: str
    stdin_path: str
    private: bool = False
    walled: bool = False
    run_as: int = 0
    packages: tuple[str, ...] = ()
    memory: MemoryShares | None = None
    one_process_filter: bytes = b""


@dataclass(frozen=True)
class ProgramOutcome:
    """The outcome of one test.

    status: exit (with its code), signal and output for scripts; ok, wrong, error, load, died, unsupported for checks;
    timeout, files and memory (killed by the kernel at the cgroup's limit) for both.
    """

    status: str
    code: int = 0
    output: bytes = b""
    error: str = ""


@dataclass(frozen=True)
class Report:
    """All outcomes in order; fewer than tests if the sandbox stopped before the end.

    `stopped`: why it stopped, timeout or memory (caused by the program), or "". `failure` is the sandbox's own: the
    supervisor did not start, or died. `peak_bytes`: peak memory of the sandbox, if a cgroup counts it.
    """

    outcomes: tuple[ProgramOutcome, ...]
    stopped: str = ""
    failure: str = ""
    peak_bytes: int = 0


def frames(job: SandboxJob, place: Place) -> list[bytes]:
    """Return the frames for the supervisor: the job, then, for checks, the expected values, which only it may have."""
    limits, work = job.limits, job.work
    memory = place.memory or whole_memory(limits)
    settings = {
        "kind": work.kind,
        "program": job.program.encode("utf-8", "replace").decode(),
        "stop_early": job.stop_early,
        "wall_s": float(limits.wall_s),
        "cpu_s": max(1, round(limits.cpu_s)),
        "memory_bytes": memory.program,
        "supervisor_bytes": memory.supervisor,
        "one_process_filter": place.one_process_filter,
        "file_bytes": int(limits.file_mb * MEGABYTE),
        "open_files": int(limits.open_files),
        "processes": int(limits.processes),
        "files": int(limits.files),
        "work_dir": place.work_dir,
        "stdin_path": place.stdin_path,
        "private": place.private,
        "walled": place.walled,
        "run_as": place.run_as,
        "packages": place.packages,
    }
    if isinstance(work, Scripts):
        output_bytes = int(limits.output_mb * MEGABYTE) + work.longest_output
        return [marshal.dumps({**settings, "stdins": work.stdins, "output_bytes": output_bytes}, _MARSHAL_VERSION)]
    secret = {
        "checks": [check if isinstance(check, str) else dict(check) for check in work.checks],
        "names": work.names,
        "modules": work.modules,
        "setup": work.setup,
    }
    public = {**settings, "num_checks": len(work.checks)}
    return [marshal.dumps(public, _MARSHAL_VERSION), marshal.dumps(secret, _MARSHAL_VERSION)]


def framed(contents: Iterable[bytes]) -> bytes:
    from egpo.rewards.sandbox.inside.wire import frame  # needs a Unix system, as the sandbox does

    return b"".join(map(frame, contents))


def read_outcomes(data: bytes) -> tuple[ProgramOutcome, ...]:
    """Read the records that the supervisor wrote, one per test. A record that is cut off or invalid ends the list."""
    outcomes, at = [], 0
    while (end := data.find(b"\n", at)) >= 0:
        try:
            status, *numbers = data[at:end].decode("ascii").split(" ")
            code, output, error = map(int, numbers)
        except ValueError:
            break
        at, stop = end + 1, end + 1 + output + error
        if min(output, error) < 0 or stop > len(data):
            break
        text = data[at + output : stop].decode("utf-8", "replace")
        outcomes.append(ProgramOutcome(status, code, data[at : at + output], text))
        at = stop
    return tuple(outcomes[1:])  # without that of the start


def has_started(data: bytes | bytearray) -> bool:
    """Return whether the supervisor reached the program: a timeout before that is not caused by the program."""
    return data.startswith(b"ready ")
