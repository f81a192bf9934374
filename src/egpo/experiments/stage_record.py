"""`stages.json` of a run: which jobs were done, from which inputs, and which files they wrote.

A job is skipped while its inputs and outputs have the recorded fingerprints. The file is replaced after each job, so
that it is always complete.
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from egpo.errors import EgpoError, InputError
from egpo.files import write_atomically
from egpo.fingerprints import digest_of, fingerprints, sealed, unsealed
from egpo.runs.folder import RunFolder
from egpo.runs.removed import read_removed
from egpo.version import __version__

FORMAT = 1


@dataclass(frozen=True)
class StageJob:
    """One piece of a stage's work.

    `name` is the stage's, or `stage: part` if it has several jobs. `inputs` maps names to digests: if one changes, the
    job is done again. `outputs` returns the files that the job has written, once it is done. `work` does the job and
    returns one line about the result. `shared`: the result does not depend on the run, so that runs with the same
    inputs compute it once.
    """

    name: str
    inputs: Mapping[str, str]
    outputs: Callable[[], list[Path]]
    work: Callable[[], str]
    shared: bool = False

    @property
    def digest(self) -> str:
        """The same for jobs of other runs that have the same result."""
        return digest_of([self.name, self.all_inputs])

    @property
    def all_inputs(self) -> dict[str, str]:
        """The inputs and the version of the package."""
        return {**self.inputs, "version of egpo": __version__}


@dataclass(frozen=True)
class RecordedJob:
    """An entry of `stages.json`. `outputs` maps paths relative to the run folder to fingerprints."""

    inputs: Mapping[str, str]
    outputs: Mapping[str, str | None]
    time: str

    def __post_init__(self) -> None:
        if not (isinstance(self.inputs, Mapping) and isinstance(self.outputs, Mapping)):
            raise TypeError("inputs and outputs must be mappings")


class StageRecord:
    """The `stages.json` of one run folder."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._jobs = _read(path) if path.is_file() else {}
        self._removed = RunFolder(path.parent).removed

    def reason_to_work(self, job: StageJob) -> str | None:
        """Return why the job has to run; None if its inputs and outputs are as recorded."""
        return self._reason(job, job.outputs())

    def has_done(self, job: StageJob) -> bool:
        """Return whether this run has done a job with the same inputs, and its outputs are still as recorded."""
        return self._reason(job, ()) is None

    def _reason(self, job: StageJob, outputs: Iterable[Path]) -> str | None:
        recorded = self._jobs.get(job.name)
        if recorded is None:
            return "not done yet"
        wanted = job.all_inputs
        changed = [name for name in {**wanted, **recorded.inputs} if wanted.get(name) != recorded.inputs.get(name)]
        if changed:
            return f"changed: {', '.join(changed)}"
        gone = self._files_removed()
        written = [self._path.parent / name for name in recorded.outputs if name not in gone]
        found = {
            name: now for name, now in self._relative(fingerprints([*written, *outputs])).items() if name not in gone
        }
        others = [name for name, now in found.items() if name not in recorded.outputs or recorded.outputs[name] != now]
        return f"output changed or missing: {others[0]}" if others else None

    def _files_removed(self) -> set[str]:
        """Return the outputs that were removed on purpose, which are not missed."""
        removed = read_removed(self._removed)
        return set() if removed is None else set(removed.files)

    def done(self, job: StageJob) -> None:
        """Record the job as done, with the current fingerprints of its outputs."""
        time = datetime.now(UTC).isoformat(timespec="seconds")
        self._jobs[job.name] = RecordedJob(job.all_inputs, self._relative(fingerprints(job.outputs())), time)
        value = {"format": FORMAT, "jobs": {name: asdict(recorded) for name, recorded in self._jobs.items()}}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path, json.dumps(sealed(value), indent=2) + "\n")
        except OSError as error:
            fix = "free some disk space or fix the permissions"
            raise EgpoError(f"the file cannot be written ({error.strerror})", where=str(self._path), fix=fix) from error

    def _relative(self, found: Mapping[Path, str | None]) -> dict[str, str | None]:
        home = self._path.parent
        return {os.path.normpath(os.path.relpath(path, home)): value for path, value in found.items()}


def _read(path: Path) -> dict[str, RecordedJob]:
    try:
        value = unsealed(json.loads(path.read_text(encoding="utf-8")))
        if value["format"] != FORMAT:
            raise ValueError(f"format {value['format']}")
        return {name: RecordedJob(**recorded) for name, recorded in value["jobs"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        fix = "remove the file: its jobs then run again, and a training resumes from its checkpoint"
        what = f"the file is not a valid record of stages ({error!r:.80})"
        raise InputError(what, where=str(path), fix=fix) from error
