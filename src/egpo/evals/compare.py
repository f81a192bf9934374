"""Base -> trained: every figure of two evaluations, paired by problem."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from egpo.evals.bootstrap import SHARES
from egpo.evals.paired import PairedDifference, paired_difference
from egpo.evals.samples import SampleRecord
from egpo.evals.tallies import pass_at_k_by_problem, scores_by_problem, tally_problems

ACCURACY = "accuracy"
SCORE = "score"


class Judged(Protocol):
    """A model's name and its judged responses: an `Evaluation` is one."""

    @property
    def label(self) -> str: ...
    @property
    def samples(self) -> Sequence[SampleRecord]: ...


@dataclass(frozen=True)
class Comparison:
    """`rows` by the figure's name; `num_problems` have a judged response of both models."""

    base: str
    other: str
    num_problems: int
    rows: dict[str, PairedDifference]


def compare(base: Judged, other: Judged, ks: Iterable[int] = (1,), seed: int = 0) -> Comparison:
    """Accuracy, pass@k and mean score. Problems that only one of them answered do not count."""
    tallies = tally_problems(base.samples), tally_problems(other.samples)
    rows = {}
    for k in sorted({1, *ks}):
        values = [pass_at_k_by_problem(tally, k) for tally in tallies]
        rows[ACCURACY if k == 1 else f"pass@{k}"] = paired_difference(*values, seed=seed, bounds=SHARES)
    rows[SCORE] = paired_difference(*map(scores_by_problem, tallies), seed=seed)
    return Comparison(base.label, other.label, rows[ACCURACY].delta.num_problems, rows)
