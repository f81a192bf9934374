"""`stages.json`: what was done, out of what, and what it left. Written after each job, whole or not at all."""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from egpo.errors import EgpoError, InputError
from egpo.experiments.job import Job
from egpo.experiments.prints import prints_of
from egpo.files import write_atomically

FORMAT = 1


@dataclass(frozen=True)
class Entry:
    """`outputs` are prints by the file's path, as seen from the run folder."""

    inputs: Mapping[str, str]
    outputs: Mapping[str, str | None]
    time: str

    def __post_init__(self) -> None:
        if not (isinstance(self.inputs, Mapping) and isinstance(self.outputs, Mapping)):
            raise TypeError("inputs and outputs are no mappings")


class StageRecord:
    """Of one run folder."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._entries = _read(path) if path.is_file() else {}

    def reason_to_work(self, job: Job) -> str | None:
        """Why the job is to be done; None where it was done out of these inputs and its outputs are as it left them."""
        return self._reason(job, job.outputs())

    def has_done(self, job: Job) -> bool:
        """Another run's job, that is: done here out of the same inputs, and intact."""
        return self._reason(job, ()) is None

    def _reason(self, job: Job, outputs: Iterable[Path]) -> str | None:
        entry = self._entries.get(job.name)
        if entry is None:
            return "not done yet"
        wanted = job.all_inputs
        changed = [name for name in {**wanted, **entry.inputs} if wanted.get(name) != entry.inputs.get(name)]
        if changed:
            return f"changed: {', '.join(changed)}"
        left = [self._path.parent / name for name in entry.outputs]
        found = self._relative(prints_of([*left, *outputs]))
        others = [name for name, now in found.items() if name not in entry.outputs or entry.outputs[name] != now]
        return f"no longer as it was left: {others[0]}" if others else None

    def done(self, job: Job) -> None:
        time = datetime.now(UTC).isoformat(timespec="seconds")
        self._entries[job.name] = Entry(job.all_inputs, self._relative(prints_of(job.outputs())), time)
        value = {"format": FORMAT, "jobs": {name: asdict(entry) for name, entry in self._entries.items()}}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path, json.dumps(value, indent=2) + "\n")
        except OSError as error:
            fix = "free some space or mend the permissions"
            raise EgpoError(f"cannot be written ({error.strerror})", where=str(self._path), fix=fix) from error

    def _relative(self, prints: Mapping[Path, str | None]) -> dict[str, str | None]:
        home = self._path.parent
        return {os.path.normpath(os.path.relpath(path, home)): found for path, found in prints.items()}


def _read(path: Path) -> dict[str, Entry]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if value["format"] != FORMAT:
            raise ValueError(f"format {value['format']}")
        return {name: Entry(**entry) for name, entry in value["jobs"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        fix = "remove it: what was done is then looked at again, and a training goes on from its checkpoint"
        raise InputError(f"no record of stages ({error!r:.80})", where=str(path), fix=fix) from error
