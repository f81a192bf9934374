"""The option `--keep` of a probe: write the problems in a range of pass rates, and as many random ones as a control."""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from egpo.data.manifest import MANIFEST, FileEntry, Manifest
from egpo.data.output import StagedFiles, refuse_other_data
from egpo.data.rows import Row, write_parquet
from egpo.errors import InputError
from egpo.evals.evaluate import ExamProblems
from egpo.probes.probe import Probe
from egpo.tasks import Problem, Task
from egpo.tasks.loading import data_source_of

KEPT, CONTROL = "kept", "control"
_VERSION = 1


@dataclass(frozen=True)
class PassRange:
    """A range of pass rates, both ends included."""

    low: float
    high: float

    @classmethod
    def parse(cls, text: str) -> "PassRange":
        """Parse a range `low:high`, such as `0.1:0.9`. Raise InputError if it is not a range between 0 and 1."""
        try:
            low, high = map(float, text.split(":"))
        except ValueError as error:
            what = f"`{text}` is not a range of pass rates"
            raise InputError(what, where="--keep", fix="write low:high, as in 0.1:0.9") from error
        if not 0 <= low <= high <= 1:
            raise InputError(
                f"`{text}` is not a range of pass rates",
                where="--keep",
                fix="give two numbers from 0 to 1, the lower one first, as in 0.1:0.9",
            )
        return cls(low, high)

    def holds(self, rate: float | None) -> bool:
        return rate is not None and self.low <= rate <= self.high

    def __str__(self) -> str:
        return f"{self.low:g}:{self.high:g}"


@dataclass(frozen=True)
class Kept:
    """The two folders written by `write_kept`, each with `num_kept` of the `num_probed` training problems."""

    kept: str
    control: str
    num_kept: int
    num_probed: int


def require_free_folders(out: Path, *, force: bool) -> None:
    """Raise InputError before the probe if the folders for `write_kept` contain other data and `force` is false."""
    for name in (KEPT, CONTROL):
        refuse_other_data(out / name, force=force)


def write_kept(probe: Probe, paper: ExamProblems, keep: PassRange, out: Path, *, force: bool = False) -> Kept:
    """Write the problems whose pass rate is in the range to `out`/kept, and equally many, drawn at random from all
    probed problems, to `out`/control. Both get the whole test split, so that each can be a task's `source`."""
    known = [problem for problem in paper.problems if problem.key in probe.pass_rates]
    kept = [problem for problem in known if keep.holds(probe.pass_rates[problem.key])]
    if not kept:
        fix = f"widen the range, or probe more problems; pass rates are multiples of 1/{paper.exam.sampling.n}"
        what = f"none of the {len(known)} probed problems has a pass rate in this range"
        raise InputError(what, where=f"--keep {keep}", fix=fix)
    drawn = set(random.Random(f"{paper.exam.sampling.seed}:control").sample(range(len(known)), len(kept)))
    control = [problem for place, problem in enumerate(known) if place in drawn]
    for name, problems in ((KEPT, kept), (CONTROL, control)):
        _write(out / name, problems, paper, _described(probe, paper, keep, name), force)
    return Kept(str(out / KEPT), str(out / CONTROL), len(kept), len(known))


def _write(
    out: Path, problems: Sequence[Problem], paper: ExamProblems, manifest: Mapping[str, Any], force: bool
) -> None:
    splits = {"train": problems, "test": paper.task.problems("test")}
    with StagedFiles(out, force=force) as files:
        entries = {}
        for split, members in splits.items():
            if len(members):
                path = files.stage(f"{split}.parquet")
                count = write_parquet(path, _rows(paper, members), split)
                entries[path.name] = FileEntry.of(path, count)
        Manifest(**manifest, files=entries).write(files.stage(MANIFEST))
        files.commit()


def _rows(paper: ExamProblems, problems: Iterable[Problem]) -> Iterable[Row]:
    source, task = data_source_of(paper.task, paper.exam.task), paper.task
    return (_row(task, problem, source) for problem in problems)


def _row(task: Task, problem: Problem, source: str) -> Row:
    return Row(source, tuple(task.prompt(problem)), problem.ability, problem.ground_truth, problem.extra)


def _described(probe: Probe, paper: ExamProblems, keep: PassRange, name: str) -> dict[str, Any]:
    """Return a folder's manifest without its list of files. `source_sha256` is a digest of the probed problems."""
    exam = paper.exam
    return {
        "kind": f"probe {name}",
        "source": exam.task,
        "source_sha256": probe.evaluation.data,
        "version": _VERSION,
        "seed": exam.sampling.seed,
        "settings": {
            "keep": str(keep),
            "model": probe.evaluation.label,
            "num_probed": len(probe.pass_rates),
            "n": exam.sampling.n,
            "temperature": exam.sampling.temperature,
            "top_p": exam.sampling.top_p,
            "top_k": exam.sampling.top_k,
            "min_p": exam.sampling.min_p,
            "max_tokens": exam.sampling.max_tokens,
        },
    }
