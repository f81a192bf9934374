"""Computes the figures of an evaluation from its judged responses: accuracy, pass@k, score, entropy, length, reasons.

The responses to each problem are summarized first (`tally_problems`). Most figures are means over problems, with
intervals.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from egpo.evals.intervals import SHARES, Estimate, mean_with_interval, pass_at_k
from egpo.evals.responses import SampleRecord

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
"""Reasons that egpo's rewards give for a response in which no answer can be found.

A response with any other reason, such as those of custom tasks, counts as readable.
"""


@dataclass(frozen=True)
class Figures:
    """The figures of an evaluation: means over problems with 95 % intervals. Unknown figures are None or missing.

    `accuracy`: fraction of fully correct responses (pass@1). `entropy`: mean entropy of each segment (thinking, answer,
    response), in nats. `length`: in tokens. `readable_frac`: fraction of responses that contain an answer, right or
    wrong. `reasons`: number of judged responses by reason. `failures`: number of responses for which the checker or the
    server failed, by reason; all figures except `num_responses` leave these out.

    Of episodes: `turns` and `calls` per episode, the number of episodes by `endings`, and how often each fault of the
    model occurred (`faults`). `readable_frac` is None.
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
    turns: Estimate | None = None
    calls: Estimate | None = None
    endings: Mapping[str, int] = field(default_factory=dict)
    faults: Mapping[str, int] = field(default_factory=dict)

    @property
    def num_failed(self) -> int:
        return sum(self.failures.values())


def figures_of(samples: Sequence[SampleRecord], ks: Iterable[int] = (1,), seed: int = 0) -> Figures:
    """Return the figures of these judged responses. `seed` is the seed of the bootstrap for the intervals."""
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
        readable_frac=_share(sample.reason not in UNREADABLE for sample in judged if sample.episode is None),
        reasons=_counted(sample.reason for sample in judged),
        failures=_counted(sample.reason for sample in samples if sample.failed),
        **_of_episodes(judged, seed),
    )


def _of_episodes(judged: Sequence[SampleRecord], seed: int) -> dict[str, Any]:
    episodes = [(sample.problem, sample.episode) for sample in judged if sample.episode is not None]
    if not episodes:
        return {}
    calls = [(problem, sum(len(turn.get("calls", ())) for turn in one["turns"])) for problem, one in episodes]
    faults: Counter[str] = Counter()
    for _, one in episodes:
        faults.update(one.get("reasons", {}))
    return {
        "turns": _over_problems([(problem, len(one["turns"])) for problem, one in episodes], seed),
        "calls": _over_problems(calls, seed),
        "endings": _counted(str(one.get("ending")) for _, one in episodes),
        "faults": dict(faults.most_common()),
    }


def _entropies(judged: Sequence[SampleRecord], seed: int) -> dict[str, Estimate]:
    names = dict.fromkeys(name for sample in judged for name in sample.segments)
    means = {name: _over_problems([(s.problem, s.segments.get(name)) for s in judged], seed) for name in names}
    return {name: estimate for name, estimate in means.items() if estimate is not None}


def _over_problems(values: Iterable[tuple[str, float | None]], seed: int) -> Estimate | None:
    """Return the mean over problems of the mean over each problem's values, from pairs of problem and value.

    Values of None and NaN are left out.
    """
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


@dataclass(frozen=True)
class Tally:
    """A summary of the judged responses to one problem: their number, the number of correct ones, the mean score."""

    num_judged: int
    num_correct: int
    mean_score: float


def tally_problems(samples: Iterable[SampleRecord]) -> dict[str, Tally]:
    """Summarize the judged responses to each problem, by the problem's key, in the order of the samples.

    Responses for which the checker or the server failed are left out.
    """
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
    """Return the mean score of each problem, by its key; NaN if none of its responses was judged."""
    return {key: tally.mean_score for key, tally in tallies.items()}


def pass_at_k_by_problem(tallies: dict[str, Tally], k: int) -> dict[str, float]:
    """Return pass@k of each problem, by its key; NaN if fewer than k of its responses were judged.

    For k = 1 this is the fraction of correct responses, whose mean over problems is the accuracy.
    """
    found = tallies.values()
    values = pass_at_k([tally.num_judged for tally in found], [tally.num_correct for tally in found], k)
    return dict(zip(tallies, values.tolist(), strict=True))
