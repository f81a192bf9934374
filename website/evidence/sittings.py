"""The file docs/evidence/sittings.yaml: when, where and at which commit the runs were made, and at which cost.

`check_sittings` holds it against the provenance of the runs: each run belongs to one sitting, its code is that of the
sitting's commit, and all sittings have the same code, or code that was shown to give the same bits.
"""

import io
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import yaml
from pydantic import Field, ValidationError

from egpo.errors import InputError
from egpo.fingerprints import code_digest
from egpo.runs.provenance import CODE_VERSION, Launch
from egpo.runs.stored import StoredRun, read_json_object
from egpo.sections import Section

ROOT = Path(__file__).resolve().parents[2]
NAME = "sittings.yaml"
Strings = Annotated[tuple[str, ...], Field(strict=False, min_length=1)]


class Sitting(Section):
    """Runs that were made at one time on one machine. `code` is the digest of egpo's source that every run recorded.
    `wall_minutes` is how long the machine was used for them, from the first command to the end of the last."""

    date: str
    hardware: str
    gpus: Annotated[int, Field(ge=0)] = 1
    commit: Annotated[str, Field(pattern="^[0-9a-f]{40}$")]
    code: str
    runs_at_a_time: Annotated[int, Field(ge=1)]
    wall_minutes: Annotated[float, Field(gt=0, strict=False)]
    runs: Strings

    @property
    def gpu_minutes(self) -> float:
        return self.wall_minutes * self.gpus


class SameBits(Section):
    """Codes that give the same results bit by bit, and how that was shown."""

    codes: Strings
    shown_by: str


class SameWeights(Section):
    """Digests of model folders that have the same weights and differ in another file, and how that was shown."""

    digests: Strings
    shown_by: str


class Sittings(Section):
    """The whole file. `rerun` is the command that makes all runs again."""

    rerun: str = ""
    sittings: Annotated[tuple[Sitting, ...], Field(strict=False)] = ()
    same_bits: Annotated[tuple[SameBits, ...], Field(strict=False)] = ()
    same_weights: Annotated[tuple[SameWeights, ...], Field(strict=False)] = ()


def read_sittings(folder: Path) -> Sittings:
    path = folder / NAME
    try:
        return Sittings.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")) or {})
    except (OSError, yaml.YAMLError, ValidationError) as error:
        fix = "`python -m website.evidence add` writes it; website/evidence/sittings.py describes its keys"
        raise InputError(f"the file of sittings cannot be read ({error})", where=str(path), fix=fix) from error


def sitting_of(
    folder: Path, names: Sequence[str], commit: str, runs_at_a_time: int, wall_minutes: float
) -> dict[str, Any]:
    """Return a sitting of these runs as it is stored. Date, hardware and code come from their provenance.

    Raise InputError if the runs are of several machines or codes, or if the commit has other code.
    """
    launches = [launch for name in names for launch in launches_of(StoredRun.at(folder / name))]
    facts = {
        "date": min(launch.time for launch in launches)[:10],
        "hardware": _one({hardware_of(launch) for launch in launches}, "machines"),
        "gpus": int(launches[0].hardware.gpu is not None),
        "commit": commit,
        "code": _one({code_of(launch) for launch in launches}, "versions of the code"),
        "runs_at_a_time": runs_at_a_time,
        "wall_minutes": wall_minutes,
        "runs": list(names),
    }
    sitting = Sitting.model_validate(facts)
    _check_commit(folder, sitting)
    _check_minutes(folder, sitting, [StoredRun.at(folder / name) for name in names])
    return facts


def append_sitting(folder: Path, facts: Mapping[str, Any], rerun: str = "") -> None:
    """Add a sitting to the file, which is made if it is not there. `rerun` replaces the command if it is given."""
    path = folder / NAME
    value = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else {}
    value = {**value, "rerun": rerun or value.get("rerun", ""), "sittings": [*value.get("sittings", []), facts]}
    path.write_text(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=120), encoding="utf-8")


def check_sittings(folder: Path, runs: Mapping[str, StoredRun]) -> Sittings:
    """Return the sittings. Raise InputError if the file does not agree with the runs, which have names `task/run`."""
    found = read_sittings(folder)
    listed = [name for sitting in found.sittings for name in sitting.runs]
    for name in sorted({*listed, *runs}):
        if listed.count(name) != 1 or name not in runs:
            where = f"is in {listed.count(name)} sittings" if name in runs else "is in a sitting but has no folder"
            raise _refused(folder, f"the run {name} {where}", "name each run in one sitting")
    for sitting in found.sittings:
        for name in sitting.runs:
            _check_run(folder, sitting, name, runs[name])
        _check_minutes(folder, sitting, [runs[name] for name in sitting.runs])
        _check_commit(folder, sitting)
    _check_codes(folder, found)
    return found


def launches_of(run: StoredRun) -> list[Launch]:
    provenance = run.provenance
    return [] if provenance is None else [provenance.start, *provenance.resumptions]


def code_of(launch: Launch) -> str:
    return launch.versions.get(CODE_VERSION, "unknown")


def hardware_of(launch: Launch) -> str:
    threads = launch.hardware.threads  # None: verl's own processes choose
    each = "" if threads is None else f", {threads} thread{'s' * (threads != 1)} a run"
    return launch.hardware.gpu or f"{launch.hardware.cpu}{each}"


def training_minutes(run: StoredRun) -> float:
    """Return the time of all training steps and validations of a run, in minutes, as the run itself measured it."""
    return sum(line.get("timing_s/step", 0.0) for line in run.timings) / 60


def code_at(commit: str, root: Path = ROOT) -> str | None:
    """Return the digest of egpo's source at a commit of a repository; None if the commit is not there."""
    command = ["git", "-C", str(root), "archive", "--format=tar", commit, "src/egpo"]
    done = subprocess.run(command, capture_output=True)
    if done.returncode != 0:
        return None
    with TemporaryDirectory() as folder, tarfile.open(fileobj=io.BytesIO(done.stdout)) as tar:
        tar.extractall(folder, filter="data")
        return code_digest(Path(folder) / "src" / "egpo")


def commit_of(name: str, root: Path = ROOT) -> str:
    """Return the 40 digits of a commit, given by them or by a name such as HEAD."""
    done = subprocess.run(["git", "-C", str(root), "rev-parse", f"{name}^{{commit}}"], capture_output=True, text=True)
    if done.returncode != 0:
        raise InputError(f"there is no commit `{name}`", where=str(root), fix="give the commit of the runs")
    return done.stdout.strip()


def _check_run(folder: Path, sitting: Sitting, name: str, run: StoredRun) -> None:
    for launch in launches_of(run):
        if code_of(launch) != sitting.code:
            what = f"{name} was made with the code {code_of(launch)}, and its sitting says {sitting.code}"
            raise _refused(folder, what, "put runs of different code into different sittings")
        if hardware_of(launch) != sitting.hardware:
            what = f"{name} was made on {hardware_of(launch)}, and its sitting says {sitting.hardware}"
            raise _refused(folder, what, "put runs of different machines into different sittings")


def _check_commit(folder: Path, sitting: Sitting) -> None:
    """Raise InputError if the commit has other code than the runs. A shallow clone may not have the commit."""
    known = code_at(sitting.commit)
    if known is not None and known != sitting.code:
        what = f"the code of commit {sitting.commit[:12]} is {known}, and that of the runs {sitting.code}"
        raise _refused(folder, what, "name the commit at which the runs were made, without changes")


def _check_minutes(folder: Path, sitting: Sitting, runs: Sequence[StoredRun]) -> None:
    """Raise InputError if the runs took longer, by their own clocks, than the sitting says."""
    starts = [launch.time for run in runs for launch in launches_of(run)]
    ends = [str(job["time"]) for run in runs for job in _jobs(run)]
    if not starts or not ends:
        return
    span = (datetime.fromisoformat(max(ends)) - datetime.fromisoformat(min(starts))).total_seconds() / 60
    if span > sitting.wall_minutes + 0.5:
        what = f"the runs of {sitting.date} took {span:.1f} minutes, and their sitting says {sitting.wall_minutes}"
        raise _refused(folder, what, "correct wall_minutes")


def _jobs(run: StoredRun) -> list[Mapping[str, str]]:
    path = run.folder.stages
    return list(read_json_object(path).get("jobs", {}).values()) if path.is_file() else []


def _check_codes(folder: Path, found: Sittings) -> None:
    codes = {sitting.code for sitting in found.sittings}
    if len(codes) > 1 and not any(codes <= set(same.codes) for same in found.same_bits):
        what = f"the runs were made with different code: {', '.join(sorted(codes))}"
        raise _refused(folder, what, "show that it gives the same bits, and say how under `same_bits`")


def _one(values: set[str], what: str) -> str:
    if len(values) != 1:
        listed = ", ".join(sorted(values)) or "none"
        raise InputError(f"the runs of a sitting have different {what}: {listed}", where=NAME, fix="add them apart")
    return values.pop()


def _refused(folder: Path, what: str, fix: str) -> InputError:
    return InputError(what, where=str(folder / NAME), fix=fix)
