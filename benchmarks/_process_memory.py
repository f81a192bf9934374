"""Peak memory of a piece of work, on top of what the process holds when it begins. Linux only."""

import ctypes
import gc
from pathlib import Path

_STATUS = Path("/proc/self/status")


class PeakMemory:
    """Measures from its creation on. Memory that earlier work has freed is returned to the system first."""

    def __init__(self) -> None:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # reset the peak to what is held now
        self._held = _mebibytes("VmRSS")

    def taken(self) -> dict[str, float]:
        """Return MiB: `peak` of the whole process since then, and `beyond`, its excess over what was held before."""
        peak = _mebibytes("VmHWM")
        return {"peak": peak, "beyond": peak - self._held}


def _mebibytes(name: str) -> float:
    (line,) = (line for line in _STATUS.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) / 1024
