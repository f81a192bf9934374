"""Responses gathered by problem. P problems."""

from collections.abc import Iterable
from dataclasses import dataclass

from egpo.evals.passk import pass_at_k
from egpo.evals.samples import SampleRecord


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
