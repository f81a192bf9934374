"""The processes of a verl launch: how verl's driver is started, and the record from which a later launcher ends them.

`verl/launch.json` lists the processes that work on a run, for the next launcher after one that was killed.
"""

import json
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from egpo.errors import EgpoError
from egpo.files import write_atomically
from egpo.processes.launches import LaunchedProcesses, start_in_session
from egpo.processes.table import ProcessId, boot_id, remove_shared_memory
from egpo.verl.launch.command import Command
from egpo.verl.launch.layout import VerlPlaces


def start(command: Command, log: Path) -> subprocess.Popen[bytes]:
    """Start verl's driver in a session of its own; its output is appended to `log`."""
    try:
        return start_in_session(command.arguments, command.environment, log)
    except OSError as error:
        what = f"verl cannot be started ({error.strerror})"
        raise EgpoError(what, where=command.arguments[0], fix="check verl.python") from error


@dataclass(frozen=True)
class LaunchRecord:
    """Content of `verl/launch.json`. `boot` identifies the machine's last boot, which makes older records invalid."""

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
    """What a killed launcher left: the number of running processes, and a metrics file that is not copied yet."""

    num_processes: int
    metrics: Path


def end_leftovers(places: VerlPlaces) -> Leftovers | None:
    """End the processes that a killed launcher of this run left, and free their shared memory.

    Returns None if no launcher of this run was killed. The caller has the run's lock, so that no other launcher of this
    run is alive.
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


def launch_record(launch_id: str, processes: Iterable[ProcessId], shared: Iterable[str]) -> LaunchRecord:
    return LaunchRecord(launch_id, boot_id(), tuple(sorted(processes)), tuple(sorted(shared)))
