"""`verl/launch.json`: which processes work on a run, for whoever comes after a launcher that was killed."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from egpo.files import write_atomically
from egpo.verl.launch.places import VerlPlaces
from egpo.verl.launch.processes import LaunchedProcesses, ProcessId, remove_shared_memory

_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class LaunchRecord:
    """`boot`: process numbers mean nothing after the machine was started again."""

    launch_id: str
    boot: str
    processes: tuple[ProcessId, ...] = ()
    shared_memory: tuple[str, ...] = ()

    def write(self, path: Path) -> None:
        values = vars(self) | {"processes": [[one.pid, one.start] for one in self.processes]}
        write_atomically(path, json.dumps(values, indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> "LaunchRecord":
        values = json.loads(path.read_text(encoding="utf-8"))
        processes = tuple(ProcessId(*one) for one in values["processes"])
        return cls(**{**values, "processes": processes, "shared_memory": tuple(values["shared_memory"])})


@dataclass(frozen=True)
class Leftovers:
    """How many processes were still at work, and where the figures lie that nobody has taken over yet."""

    num_processes: int
    metrics: Path


def boot_id() -> str:
    return _BOOT.read_text(encoding="ascii").strip() if _BOOT.exists() else ""


def end_leftovers(places: VerlPlaces) -> Leftovers | None:
    """Ends what a killed launcher of this run left at work, and frees its memory; None where none was killed.

    The run's lock is held by now: no launcher of it is alive.
    """
    if not places.launch.exists():
        return None
    record = LaunchRecord.read(places.launch)
    num_left = 0
    if record.boot == boot_id():
        left = LaunchedProcesses(record.launch_id, record.processes)
        num_left = len(left.look())
        left.end()
        remove_shared_memory(record.shared_memory)
    return Leftovers(num_left, places.metrics_of(record.launch_id))


def described(launch_id: str, processes: Iterable[ProcessId], shared: Iterable[str]) -> LaunchRecord:
    return LaunchRecord(launch_id, boot_id(), tuple(sorted(processes)), tuple(sorted(shared)))
