"""What one program may use up."""

from dataclasses import dataclass, fields

from egpo.errors import InputError

MEGABYTE = 1 << 20


@dataclass(frozen=True)
class Limits:
    """The bounds of one sandboxed program. Every one is a positive number."""

    wall_s: float = 6.0
    """Seconds on the clock for one test."""
    cpu_s: int = 5
    """Seconds of processor time for each process of the program."""
    total_s: float = 60.0
    """Seconds on the clock for all tests of a program together."""
    memory_mb: int = 1024
    """Everything that the sandbox holds: its processes, its files, and what the kernel keeps for them."""
    processes: int = 16
    """Processes and threads alive at once. Without a cgroup a program is one process, and these are its threads."""
    tmp_mb: int = 64
    """Size of the private /tmp, which lives in memory."""
    file_mb: int = 16
    """Size of one file."""
    files: int = 20_000
    """Files, directories and links in the private file systems: each costs the kernel a kilobyte, empty or not."""
    output_mb: int = 1
    """Standard output of one test, beyond the length of the longest that is expected."""
    open_files: int = 64
    """File descriptors of one process."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e9:
                raise InputError(f"`{value}` is not a positive number", where=f"sandbox limits [{field.name}]")


@dataclass(frozen=True)
class MemoryShares:
    """Bytes of `memory_mb` for each part of a sandbox. `supervisor` is 0 where a cgroup holds all parts together."""

    program: int
    supervisor: int
    tmp: int


_KERNEL_BYTES = 64 * MEGABYTE
"""Without a cgroup, for what no limit counts: page tables (24 MB at most), pipes, sockets, files between two looks."""
_SCRIPT_SUPERVISOR_BYTES = 48 * MEGABYTE


def whole_memory(limits: Limits) -> MemoryShares:
    """With a cgroup: every process may use all of it, and the kernel adds up."""
    return MemoryShares(int(limits.memory_mb * MEGABYTE), 0, int(limits.tmp_mb * MEGABYTE))


def divided_memory(limits: Limits, tests_run_inside: bool, input_bytes: int) -> MemoryShares:
    """Without a cgroup: a fixed address space for each part, which together are `memory_mb`.

    The program is a single process, so that its share is divided by one. `tests_run_inside`: the supervisor runs test
    code on values from the program, and gets a quarter. `input_bytes`: what the supervisor is sent, of which it holds
    copies. Below 256 MB the program's share is a quarter, and the sum may be more than `memory_mb`.
    """
    whole = int(limits.memory_mb * MEGABYTE)
    tmp = min(int(limits.tmp_mb * MEGABYTE), whole // 4)
    supervisor = max(_SCRIPT_SUPERVISOR_BYTES, whole // 4 if tests_run_inside else 0) + 4 * input_bytes
    return MemoryShares(max(whole - tmp - supervisor - _KERNEL_BYTES, whole // 4), supervisor, tmp)
