"""The evaluations of a run, by exam: which of them are the same exam sat again, and which one is compared."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

from egpo.errors import InputError
from egpo.evals.samples import SampleRecord, read_samples

_AGAIN = re.compile(r"[-_.](step|seed|run)[-_]?\d+$")
"""Endings of a file's name that do not make it another exam: `countdown-n8-t1-seed3-step40`."""


@dataclass(frozen=True)
class Sitting:
    """One evaluation file: `header` is the JSON with the figures; the responses lie beside it."""

    path: Path
    header: Mapping[str, Any]

    @property
    def exam(self) -> str:
        """The name of its file, without what tells sittings of one exam apart."""
        name, shorter = self.path.stem, ""
        while (shorter := _AGAIN.sub("", name)) != name:
            name = shorter
        return name

    @property
    def step(self) -> int | None:
        step = self.header.get("step")
        return step if isinstance(step, int) else None

    def section(self, name: str) -> Mapping[str, Any]:
        """`sampling` or `task_settings` of the header; empty where it is not there."""
        value = self.header.get(name)
        return value if isinstance(value, dict) else {}

    @cached_property
    def samples(self) -> Sequence[SampleRecord]:
        """InputError where there are none: figures alone cannot be paired by problem."""
        path = self.path.with_suffix(".jsonl")
        if not path.is_file():
            fix = "evaluate again, or compare figures alone with --scores"
            raise InputError("the responses of this evaluation are gone", where=str(path), fix=fix)
        return read_samples(path)

    @property
    def passes(self) -> list[list[SampleRecord]]:
        """The first responses to all problems, the second ones, and so on: each is an evaluation in itself."""
        found: dict[int, list[SampleRecord]] = {}
        for sample in self.samples:
            found.setdefault(sample.sample, []).append(sample)
        return [found[number] for number in sorted(found)]


def read_sittings(folder: Path) -> list[Sitting]:
    """Every evaluation of the run in its `evals`, in the order of names. Files that are no evaluations (a probe) are
    passed over, and so are evaluations of no checkpoint (the base's) beside those of checkpoints; a model that was
    served has none of the latter. A file that cannot be read is an InputError."""
    found = [read_sitting(path) for path in sorted(folder.glob("*.json"))]
    sittings = [sitting for sitting in found if sitting is not None]
    return [sitting for sitting in sittings if sitting.step is not None] or sittings


def read_sitting(path: Path) -> Sitting | None:
    """None where it is no evaluation."""
    sitting = Sitting(path, _header(path))
    return sitting if "accuracy" in sitting.header and "task" in sitting.header else None


def latest(sittings: Sequence[Sitting]) -> list[Sitting]:
    """Those of the latest checkpoint."""
    last = max((sitting.step for sitting in sittings if sitting.step is not None), default=None)
    return [sitting for sitting in sittings if sitting.step == last]


def choose_exam(sittings: Mapping[str, Sequence[Sitting]], wanted: str | None) -> dict[str, list[Sitting]]:
    """By the run's name, its sittings of the exam to compare: the one that `wanted` names (`*` stands for anything),
    or the only one that all runs share, or the only one that each has, under whatever name."""
    names = {run: _names(found, wanted) for run, found in sittings.items()}
    for run, held in names.items():
        if not held:
            raise _no_such_exam(run, sittings[run], wanted)
    shared = [name for name in next(iter(names.values())) if all(name in held for held in names.values())]
    if len(shared) > 1:
        fix = f"choose one before you look, by --eval: {', '.join(shared)}"
        raise InputError(f"the runs share {len(shared)} evaluations", where="egpo compare", fix=fix)
    if not shared and any(len(held) > 1 for held in names.values()):
        held_by = "; ".join(f"{run}: {', '.join(held)}" for run, held in names.items())
        raise InputError("the runs share no evaluation", where="egpo compare", fix=f"evaluate them alike ({held_by})")
    chosen = {run: shared[0] if shared else held[0] for run, held in names.items()}
    return {run: latest([s for s in found if s.exam == chosen[run]]) for run, found in sittings.items()}


def _names(sittings: Sequence[Sitting], wanted: str | None) -> list[str]:
    names = dict.fromkeys(sitting.exam for sitting in sittings)
    return [name for name in names if wanted is None or fnmatchcase(name, wanted)]


def _no_such_exam(run: str, sittings: Sequence[Sitting], wanted: str | None) -> InputError:
    held = ", ".join(dict.fromkeys(sitting.exam for sitting in sittings))
    if not held:
        return InputError("this run has no evaluation", where=run, fix=f"make one: egpo eval {run}")
    return InputError(f"no evaluation `{wanted}`", where=run, fix=f"there are: {held}")


def _header(path: Path) -> Mapping[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        fix = "evaluate again, or remove it"
        raise InputError(f"cannot be read ({error!s:.80})", where=str(path), fix=fix) from error
    return value if isinstance(value, dict) else {}
