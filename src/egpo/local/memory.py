"""Recognise errors that mean out of memory, name who holds a GPU's memory, and compute the main memory that is left."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from egpo.errors import EgpoError

OUT_OF_MEMORY = (RuntimeError, MemoryError)
"""Exception types that allocators raise; `is_out_of_memory` tells whether one of them means out of memory."""

# torch.OutOfMemoryError is raised for GPUs only. Other allocators raise a RuntimeError with one of these texts.
_SIGNS = (
    "can't allocate memory",
    "not enough memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDA error: out of memory",
    "CUDA driver error: out of memory",
    "Triton Error [CUDA]: out of memory",
)


def is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(sign in str(error) for sign in _SIGNS)


_WORTH_NAMING = 0.1
"""Other processes are named if they hold more than this fraction of the GPU's memory."""


def held_by_others() -> str:
    """Return a clause about the GPU memory that other processes hold, such as another run; "" if it is little."""
    if not torch.cuda.is_available():
        return ""
    free, total = torch.cuda.mem_get_info()
    others = total - free - torch.cuda.memory_reserved()
    if others < _WORTH_NAMING * total:
        return ""
    return f"; other processes hold {others / 2**30:.0f} of the {total / 2**30:.0f} GiB of this GPU"


@contextmanager
def out_of_memory_as(what: str, fix: str) -> Iterator[None]:
    """Raise an error that means out of memory as an EgpoError: "out of memory" and `what`, with `fix`.

    It can also decorate a function.
    """
    try:
        yield
    except OUT_OF_MEMORY as error:
        if isinstance(error, EgpoError) or not is_out_of_memory(error):
            raise
        raise EgpoError(f"out of memory {what}{held_by_others()}", fix=fix) from error


def free_host_bytes() -> int | None:
    """Return how many bytes of main memory this process can still take; None if unknown (no /proc).

    This is the least of what the machine has available and what the limit of each enclosing cgroup (container) leaves.
    The file cache counts as free. What the process has released since its peak is subtracted: it will need it again.
    """
    try:
        available = _kib_fields(Path("/proc/meminfo"))["MemAvailable"]
        status = _kib_fields(Path("/proc/self/status"))
        containers = [_left_in(folder) for folder in _memory_cgroups()]
    except (OSError, KeyError, ValueError):
        return None
    return min([available, *containers]) - (status["VmHWM"] - status["VmRSS"])


def _kib_fields(path: Path) -> dict[str, int]:
    """Return the fields `Name:   123 kB` of a file of /proc, in bytes."""
    words = (line.split() for line in path.read_text().splitlines())
    return {line[0].rstrip(":"): int(line[1]) * 1024 for line in words if len(line) == 3 and line[2] == "kB"}


_CGROUPS = Path("/sys/fs/cgroup")


def _memory_cgroups() -> Iterator[Path]:
    """Yield the folders of the memory cgroups of this process that can have a limit, from its own to the outermost."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, own = line.split(":", 2)
        if controllers in ("", "memory"):  # version 2, version 1
            top = _CGROUPS / controllers
            # In a container the path may be the host's, while only the container's own cgroup is mounted, at the top.
            yield from (top / place for place in [Path(own.lstrip("/")), *Path(own.lstrip("/")).parents])


def _left_in(cgroup: Path) -> int:
    """Return the limit of a cgroup minus what it holds, without file cache. A cgroup without a limit has 2^63.

    Above `memory.high` nothing is killed, but the system slows all processes of the cgroup down.
    """
    for limits, usage, prefix in (
        (("memory.max", "memory.high"), "memory.current", ""),
        (("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_"),
    ):
        texts = [(cgroup / name).read_text().strip() for name in limits if (cgroup / name).exists()]
        limited = [int(text) for text in texts if text != "max"]
        if not limited:
            continue
        stat = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
        cache = sum(int(stat[f"{prefix}{kind}_file"]) for kind in ("active", "inactive"))
        return min(limited) - int((cgroup / usage).read_text()) + cache
    return 1 << 63
