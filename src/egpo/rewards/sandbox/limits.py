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
    """Address space of each process, and resident memory of all of them together."""
    processes: int = 16
    """Processes and threads alive at once."""
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
