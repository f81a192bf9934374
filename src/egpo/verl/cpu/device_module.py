"""A replacement of `torch.cuda` for verl on a CPU: `torch.cpu`, and simple versions of the functions that it lacks.

Memory figures are those of this process and of the machine. Unknown names raise AttributeError, as on any module.
"""

import os
import resource
from pathlib import Path
from typing import Any

import torch


def __getattr__(name: str) -> Any:
    return getattr(torch.cpu, name)


def is_available() -> bool:
    return True


def device_count() -> int:
    return 1


def current_device() -> torch.device:
    return torch.device("cpu")


def get_device_name(device: Any = None) -> str:
    """Return the device name with which verl looks up the peak FLOPS (utils/flops_counter.py)."""
    return "CPU"


def set_device(device: Any) -> None:
    pass


def synchronize(device: Any = None) -> None:
    pass


def empty_cache() -> None:
    pass


def ipc_collect() -> None:
    pass


def reset_peak_memory_stats(device: Any = None) -> None:
    pass


def reset_max_memory_allocated(device: Any = None) -> None:
    pass


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    pass


def memory_allocated(device: Any = None) -> int:
    """Return the resident memory of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def max_memory_allocated(device: Any = None) -> int:
    """Return the peak resident memory of this process, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


memory_reserved, max_memory_reserved = memory_allocated, max_memory_allocated


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Return the free and total memory of the machine, in bytes."""
    page = os.sysconf("SC_PAGE_SIZE")
    return os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page


def memory_stats(device: Any = None) -> dict[str, int]:
    return {}


manual_seed = manual_seed_all = torch.manual_seed
get_rng_state, set_rng_state = torch.get_rng_state, torch.set_rng_state
