"""How much memory of this process a piece of work takes on top of what is held when it begins. Linux only."""

import ctypes
import gc
from pathlib import Path

_STATUS = Path("/proc/self/status")


class PeakMemory:
    """From its creation on. What earlier work has freed goes back to the system first."""

    def __init__(self) -> None:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # the highest so far is now what is held
        self._held = _mebibytes("VmRSS")

    def taken(self) -> dict[str, float]:
        """MiB: `peak` of the whole process since then, and of that what is `beyond` what was held."""
        peak = _mebibytes("VmHWM")
        return {"peak": peak, "beyond": peak - self._held}


def _mebibytes(name: str) -> float:
    (line,) = (line for line in _STATUS.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) / 1024
