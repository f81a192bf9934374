"""The peak memory of a piece of work, beyond the memory that the process uses before it. Linux only."""

import ctypes
import gc
from pathlib import Path

_STATUS = Path("/proc/self/status")


class PeakMemory:
    """A measurement of peak memory that starts when the object is created. Memory that earlier work has freed is
    returned to the system first."""

    def __init__(self) -> None:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # reset the peak to the memory in use now
        self._held = _mebibytes("VmRSS")

    def taken(self) -> dict[str, float]:
        """Return memory in MiB: the peak of the whole process since the start, and `beyond`, its excess over the memory
        in use at the start."""
        peak = _mebibytes("VmHWM")
        return {"peak": peak, "beyond": peak - self._held}


def _mebibytes(name: str) -> float:
    (line,) = (line for line in _STATUS.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) / 1024
