"""Was there an answer at all? A wrong one is a figure; none at all is another kind of trouble.

The figures of an evaluation, out of its judged responses.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from egpo.evals.intervals import SHARES, Estimate, mean_with_interval
from egpo.evals.samples import SampleRecord, pass_at_k_by_problem, scores_by_problem, tally_problems

UNREADABLE = frozenset(
    {
        # countdown, gsm8k, math
        "no_answer_tag",
        "no_answer",
        "unclosed_thinking",
        "not_a_number",
        "empty_expression",
        "expression_too_long",
        "illegal_character",
        "malformed_expression",
        "unparsable",
        # code
        "no_code",
        "too_long",
        "syntax_error",
        # tool calls
        "no_thinking",
        "thinking_not_closed",
        "empty_thinking",
        "text_before_thinking",
        "nested_thinking",
        "thinking_tag_in_answer",
        "no_call",
        "malformed_call",
        "unclosed_call",
        "text_after_list",
        "bare_call",
        "mixed_syntax",
        "over_limit",
    }
)
"""Reasons by which the rewards say that a response holds nothing they could read as an answer. A task from outside has
reasons of its own: those count as readable."""


@dataclass(frozen=True)
class Figures:
    """Means over problems with 95 % intervals. A figure that nothing is known about is None, or not there.

    `accuracy` is the share fully right, pass@1. `entropy` is by segment, in nats. `length` is in tokens. `reasons`
    count the responses that were judged, `failures` those that the checker or the server failed: of the model they
    tell nothing, and no other figure counts them. `readable_frac` is the share that held an answer, right or wrong.
    """

    num_problems: int
    num_responses: int
    accuracy: Estimate | None
    mean_score: Estimate | None
    pass_at_k: Mapping[int, Estimate]
    entropy: Mapping[str, Estimate]
    length: Estimate | None
    truncated_frac: float | None
    readable_frac: float | None
    reasons: Mapping[str, int]
    failures: Mapping[str, int]

    @property
    def num_failed(self) -> int:
        return sum(self.failures.values())


def figures_of(samples: Sequence[SampleRecord], ks: Iterable[int] = (1,), seed: int = 0) -> Figures:
    """`seed` is that of the resampling."""
    tallies = tally_problems(samples)
    judged = [sample for sample in samples if not sample.failed]
    shares = {k: mean_with_interval(pass_at_k_by_problem(tallies, k).values(), seed=seed, bounds=SHARES) for k in ks}
    return Figures(
        num_problems=len(tallies),
        num_responses=len(samples),
        accuracy=mean_with_interval(pass_at_k_by_problem(tallies, 1).values(), seed=seed, bounds=SHARES),
        mean_score=mean_with_interval(scores_by_problem(tallies).values(), seed=seed),
        pass_at_k={k: estimate for k, estimate in shares.items() if estimate is not None},
        entropy=_entropies(judged, seed),
        length=_over_problems(((s.problem, s.num_tokens) for s in judged), seed),
        truncated_frac=_share(not sample.finished for sample in judged if sample.finished is not None),
        readable_frac=_share(sample.reason not in UNREADABLE for sample in judged),
        reasons=_counted(sample.reason for sample in judged),
        failures=_counted(sample.reason for sample in samples if sample.failed),
    )


def _entropies(judged: Sequence[SampleRecord], seed: int) -> dict[str, Estimate]:
    names = dict.fromkeys(name for sample in judged for name in sample.segments)
    means = {name: _over_problems([(s.problem, s.segments.get(name)) for s in judged], seed) for name in names}
    return {name: estimate for name, estimate in means.items() if estimate is not None}


def _over_problems(values: Iterable[tuple[str, float | None]], seed: int) -> Estimate | None:
    """The mean over problems of the mean over their responses, of those that have a value."""
    by_problem: dict[str, list[float]] = defaultdict(list)
    for problem, value in values:
        if value is not None and math.isfinite(value):
            by_problem[problem].append(value)
    return mean_with_interval((fmean(found) for found in by_problem.values()), seed=seed)


def _share(marks: Iterable[bool]) -> float | None:
    found = list(marks)
    return sum(found) / len(found) if found else None


def _counted(names: Iterable[str]) -> dict[str, int]:
    return dict(Counter(names).most_common())
