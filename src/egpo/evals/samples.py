"""`evals/<name>.jsonl`: every response of an evaluation, judged, one JSON object a line.

verl's names where verl has one, as in `rollouts/`: `egpo audit rewards` reads these files too.

Responses gathered by problem. P problems.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from egpo.errors import InputError
from egpo.evals.intervals import pass_at_k
from egpo.files import write_atomically
from egpo.runs.json_lines import encoded, read_lines
from egpo.runs.stored import EvaluationFile


@dataclass(frozen=True)
class SampleRecord:
    """One response. What is not known is None, or not there."""

    problem: str
    """Key of the problem."""
    sample: int
    """Which of the problem's responses, counted from 0."""
    input: str
    """The prompt, as text."""
    output: str
    """The response, as the judge read it."""
    gts: Any
    """The ground truth."""
    score: float
    """The reward."""
    acc: bool
    """Fully correct."""
    reason: str
    """Why this score, or why there is none: a name out of the reward's list, or of the server's."""
    failed: bool = False
    """The checker or the server failed: score and acc say nothing of the model."""
    num_tokens: int | None = None
    finished: bool | None = None
    """Ended by a stop, and not cut off."""
    segments: Mapping[str, float] = field(default_factory=dict)
    """Mean entropy of `thinking`, `answer` and `response` in nats; an empty segment has none."""
    data_source: str = ""
    ability: str = ""
    extra_info: Mapping[str, Any] = field(default_factory=dict)


def write_samples(path: Path, samples: Iterable[SampleRecord]) -> None:
    write_atomically(path, b"".join(encoded(_as_line(sample)) for sample in samples))


def read_samples(path: Path) -> list[SampleRecord]:
    """Every whole line; names that this version does not know are passed over."""
    return [_as_record(line.value, f"{path}, line {line.number}") for line in read_lines(path)]


@dataclass(frozen=True)
class StoredEvaluation(EvaluationFile):
    """An evaluation read from disk: `header` is the JSON with the figures, `samples` are the judged responses."""

    @cached_property
    def samples(self) -> Sequence[SampleRecord]:
        """Every judged response. InputError if the file is missing: figures alone cannot be paired by problem."""
        path = self.path.with_suffix(".jsonl")
        if not path.is_file():
            fix = "evaluate again, or compare figures alone with `egpo compare --scores`"
            raise InputError("the responses of this evaluation are missing", where=str(path), fix=fix)
        return tuple(read_samples(path))

    @property
    def passes(self) -> list[list[SampleRecord]]:
        """The first responses to all problems, then the second ones, and so on: each is an evaluation in itself."""
        found: dict[int, list[SampleRecord]] = {}
        for sample in self.samples:
            found.setdefault(sample.sample, []).append(sample)
        return [found[number] for number in sorted(found)]


def _as_line(sample: SampleRecord) -> dict[str, Any]:
    line = {item.name: getattr(sample, item.name) for item in fields(sample)}
    # A reward from outside may be anything; JSON has no NaN.
    return line | {"score": sample.score if math.isfinite(sample.score) else None}


def _as_record(line: Mapping[str, Any], where: str) -> SampleRecord:
    known = {item.name: line[item.name] for item in fields(SampleRecord) if item.name in line}
    if known.get("score", 0.0) is None:
        known["score"] = math.nan
    try:
        return SampleRecord(**known)
    except TypeError as error:
        raise InputError(f"no sample ({error})", where=where, fix="give a file that `egpo eval` wrote") from error


@dataclass(frozen=True)
class Tally:
    """What was judged of one problem's responses: how many, how many of those were right, and their scores."""

    num_judged: int
    num_correct: int
    mean_score: float


def tally_problems(samples: Iterable[SampleRecord]) -> dict[str, Tally]:
    """By the problem's key, in the order of the samples. Failures are left out: they tell nothing of the model."""
    judged: dict[str, list[SampleRecord]] = {}
    for sample in samples:
        of_problem = judged.setdefault(sample.problem, [])
        if not sample.failed:
            of_problem.append(sample)
    return {key: _tally(of_problem) for key, of_problem in judged.items()}


def _tally(judged: list[SampleRecord]) -> Tally:
    scores = [sample.score for sample in judged]
    mean = sum(scores) / len(scores) if scores else float("nan")
    return Tally(len(judged), sum(sample.acc for sample in judged), mean)


def scores_by_problem(tallies: dict[str, Tally]) -> dict[str, float]:
    """Mean score; NaN where nothing was judged."""
    return {key: tally.mean_score for key, tally in tallies.items()}


def pass_at_k_by_problem(tallies: dict[str, Tally], k: int) -> dict[str, float]:
    """NaN where fewer than k were judged. At k = 1 it is the share of right responses: the accuracy is its mean."""
    found = tallies.values()
    values = pass_at_k([tally.num_judged for tally in found], [tally.num_correct for tally in found], k)
    return dict(zip(tallies, values.tolist(), strict=True))
