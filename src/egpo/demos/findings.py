"""What a demo has shown: each estimator against the base, the estimators against each other, and what kind of gain."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

from egpo.demos.plan import BASE
from egpo.evals.paired import ACCURACY, Judged, PairedDifference, compare, paired_difference

Evaluations = Mapping[str, Mapping[str, Judged]]
"""By manner (`sampled`, `greedy`), then by model."""


@dataclass(frozen=True)
class Finding:
    """`other` against `base`, paired by problem: accuracy, asked in that manner."""

    manner: str
    base: str
    other: str
    difference: PairedDifference


@dataclass(frozen=True)
class Gain:
    """One estimator against the base: accuracy in both manners, and the length of sampled responses in tokens."""

    estimator: str
    sampled: PairedDifference
    greedy: PairedDifference
    length: PairedDifference

    @property
    def described(self) -> str:
        """Which of the two happened: carelessness went, or something new came."""
        if self.sampled.verdict != "better":
            return "sampled accuracy did not rise measurably"
        if self.greedy.verdict != "better":
            return "sampled accuracy rose, greedy not measurably: more careful, and nothing new as far as one can see"
        longer = {"better": "longer: it goes on searching", "worse": "shorter"}.get(self.length.verdict, "no longer")
        return f"sampled and greedy accuracy rose, and responses became {longer}"


def against_base(evaluations: Evaluations) -> Iterator[Finding]:
    for manner, by_model in evaluations.items():
        yield from (_finding(manner, by_model, BASE, other) for other in by_model if other != BASE)


def between_estimators(evaluations: Evaluations) -> Iterator[Finding]:
    """Every pair, once."""
    for manner, by_model in evaluations.items():
        estimators = [name for name in by_model if name != BASE]
        yield from (_finding(manner, by_model, *pair) for pair in combinations(estimators, 2))


def gains(evaluations: Evaluations) -> list[Gain]:
    found = {(one.manner, one.other): one.difference for one in against_base(evaluations)}
    sampled = evaluations["sampled"]
    return [
        Gain(name, found["sampled", name], found["greedy", name], _longer(sampled[BASE], sampled[name]))
        for name in sampled
        if name != BASE
    ]


def _finding(manner: str, by_model: Mapping[str, Judged], base: str, other: str) -> Finding:
    return Finding(manner, base, other, compare(by_model[base], by_model[other]).rows[ACCURACY])


def _longer(base: Judged, other: Judged) -> PairedDifference:
    return paired_difference(_lengths(base), _lengths(other))


def _lengths(judged: Judged) -> dict[str, float]:
    """Mean length of each problem's responses, in tokens."""
    by_problem: dict[str, list[float]] = defaultdict(list)
    for sample in judged.samples:
        if sample.num_tokens is not None:
            by_problem[sample.problem].append(sample.num_tokens)
    return {problem: fmean(lengths) for problem, lengths in by_problem.items()}
