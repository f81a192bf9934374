"""The input of a sandbox (limits, and a program with its tests) and its output (the report)."""

import marshal
from collections.abc import Iterable, Iterator, Mapping
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
    """Megabytes of memory of the whole sandbox: its processes, its files, and what the kernel keeps for them."""
    processes: int = 16
    """Number of processes and threads alive at once. Without a cgroup a program is one process, with that many
    threads."""
    tmp_mb: int = 64
    """Megabytes of the private /tmp, which is in memory."""
    file_mb: int = 16
    """Megabytes of one file."""
    files: int = 20_000
    """Number of files, directories and links in the private file systems: each takes a kilobyte of the kernel's memory,
    even if it is empty."""
    output_mb: int = 1
    """Megabytes of standard output of one test, in addition to the length of the longest expected output."""
    open_files: int = 64
    """Number of open file descriptors of one process."""

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e9:
                raise InputError(f"`{value}` is not a positive number", where=f"sandbox limits [{limit.name}]")


@dataclass(frozen=True)
class MemoryShares:
    """The memory of each part of a sandbox, in bytes. `supervisor` is 0 if a cgroup limits all parts together."""

    program: int
    supervisor: int
    tmp: int


_KERNEL_BYTES = 64 * MEGABYTE
"""Memory set aside, if there is no cgroup, for what no limit counts: page tables (at most 24 MB), pipes, sockets,
files."""
_SCRIPT_SUPERVISOR_BYTES = 48 * MEGABYTE


def whole_memory(limits: Limits) -> MemoryShares:
    """Return the limits of process memory and /tmp if a cgroup limits the sum: each process may then use all memory."""
    return MemoryShares(int(limits.memory_mb * MEGABYTE), 0, int(limits.tmp_mb * MEGABYTE))


def divided_memory(limits: Limits, tests_run_inside: bool, input_bytes: int) -> MemoryShares:
    """Return the memory of each part without a cgroup: a fixed address space for each, `memory_mb` in sum.

    `tests_run_inside`: the supervisor runs test code on values from the program, and gets at least a quarter of
    `memory_mb`. `input_bytes`: size of the supervisor's input, of which it holds copies. The program, a single process,
    gets what is left, but at least a quarter: so the sum may exceed `memory_mb` if that is below 256 MB or the input is
    large.
    """
    whole = int(limits.memory_mb * MEGABYTE)
    tmp = min(int(limits.tmp_mb * MEGABYTE), whole // 4)
    supervisor = max(_SCRIPT_SUPERVISOR_BYTES, whole // 4 if tests_run_inside else 0) + 4 * input_bytes
    return MemoryShares(max(whole - tmp - supervisor - _KERNEL_BYTES, whole // 4), supervisor, tmp)


# A format that every Python from 3.4 on reads: a sandbox service may run another version than the host.
_MARSHAL_VERSION = 4


@dataclass(frozen=True)
class Scripts:
    """Tests that run the whole program once for each standard input. `longest_output` is the length in bytes of the
    longest expected output."""

    stdins: tuple[bytes, ...]
    longest_output: int = 0
    kind = "scripts"

    @property
    def size(self) -> int:
        return len(self.stdins)


@dataclass(frozen=True)
class Checks:
    """Tests that load the program once and run checks against it: test code, or calls with their expected values.

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
    """A program with its tests and limits.

    `stop_early`: stop after the first test that fails inside the sandbox. A wrong output of a script does not count,
    because the host compares the outputs.
    """

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
    `asks_host`: the host says how long the sandbox has waited for a processor, and that time is not charged.
    """

    work_dir: str
    stdin_path: str
    private: bool = False
    walled: bool = False
    run_as: int = 0
    packages: tuple[str, ...] = ()
    memory: MemoryShares | None = None
    one_process_filter: bytes = b""
    asks_host: bool = False


@dataclass(frozen=True)
class ProgramOutcome:
    """The outcome of one test.

    `status` for scripts: exit (with its code), signal, output (too much output). For checks: ok, wrong, error (the
    program raised an exception), load (it could not be loaded), died, unsupported (a fault of the test). For both:
    timeout, files (too many files), memory (killed by the kernel at the cgroup's limit).
    """

    status: str
    code: int = 0
    output: bytes = b""
    error: str = ""


@dataclass(frozen=True)
class Report:
    """The outcomes of a program's tests, in order; fewer than tests if the sandbox stopped before the end.

    `stopped`: why it stopped, timeout or memory (caused by the program), or "". `failure` is the sandbox's own: the
    supervisor did not start, or died. `peak_bytes`: peak memory of the sandbox, if a cgroup counts it. `charged_s`:
    seconds of wall-clock time that counted against the limits, 0 if they are not known (a service).
    """

    outcomes: tuple[ProgramOutcome, ...]
    stopped: str = ""
    failure: str = ""
    peak_bytes: int = 0
    charged_s: float = 0.0


def frames(job: SandboxJob, place: Place) -> list[bytes]:
    """Return the frames for the supervisor: the job and, for checks, the expected values, which the program's process
    must not have."""
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
        "asks_host": place.asks_host,
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


LATE = "late"
"""The same value as in inside/deadline.py, which needs a Unix system: a question of the supervisor, and no outcome."""


@dataclass(frozen=True)
class Record:
    """A record that the supervisor wrote: its status and code, and where in the data its output, its error and its end
    are."""

    status: str
    code: int
    output_at: int
    error_at: int
    end: int


def read_records(data: bytes | bytearray, at: int = 0) -> Iterator[Record]:
    """Yield the complete records from `at` on. A record that is cut off or invalid ends them."""
    while (end := data.find(b"\n", at)) >= 0:
        try:
            status, *numbers = data[at:end].decode("ascii").split(" ")
            code, output, error = map(int, numbers)
        except ValueError:
            return
        record = Record(status, code, end + 1, end + 1 + output, end + 1 + output + error)
        at = record.end
        if min(output, error) < 0 or at > len(data):
            return
        yield record


def read_outcomes(data: bytes) -> tuple[ProgramOutcome, ...]:
    """Return the outcome of each test from the records that the supervisor wrote."""
    records = list(read_records(data))[1:]  # without the first record, which reports the start
    return tuple(
        ProgramOutcome(
            one.status,
            one.code,
            data[one.output_at : one.error_at],
            data[one.error_at : one.end].decode("utf-8", "replace"),
        )
        for one in records
        if one.status != LATE
    )


def has_started(data: bytes | bytearray) -> bool:
    """Return whether the supervisor reached the program: a timeout before that is not caused by the program."""
    return data.startswith(b"ready ")
