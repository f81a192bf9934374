"""Paired comparisons of a demo's evaluations: estimators with the base, estimators with each other, kinds of gain."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

from egpo.evals.paired import ACCURACY, Judged, PairedDifference, compare, paired_difference

BASE = "egpo-tiny"
Evaluations = Mapping[str, Mapping[str, Judged]]
"""By manner (`sampled`, `greedy`), then by model."""


@dataclass(frozen=True)
class ModelDifference:
    """Difference in accuracy of `other` and `base`, paired by problem, sampled or greedy (`manner`)."""

    manner: str
    base: str
    other: str
    difference: PairedDifference


@dataclass(frozen=True)
class Gain:
    """One estimator compared with the base: accuracy in both manners, and length of sampled responses in tokens."""

    estimator: str
    sampled: PairedDifference
    greedy: PairedDifference
    length: PairedDifference

    @property
    def described(self) -> str:
        """The kind of gain: more reliable sampling (greedy accuracy unchanged), or newly solved problems."""
        if self.sampled.verdict != "better":
            return "sampled accuracy did not rise measurably"
        if self.greedy.verdict != "better":
            return "sampled accuracy rose, greedy not measurably: more reliable, no evidence of new abilities"
        became = {"better": "became longer: it searches more", "worse": "became shorter"}
        length = became.get(self.length.verdict, "did not become measurably longer")
        return f"sampled and greedy accuracy rose, and responses {length}"


def against_base(evaluations: Evaluations) -> Iterator[ModelDifference]:
    """Yield each estimator against the base, in both manners."""
    for manner, by_model in evaluations.items():
        yield from (_difference(manner, by_model, BASE, other) for other in by_model if other != BASE)


def between_estimators(evaluations: Evaluations) -> Iterator[ModelDifference]:
    """Yield every pair of estimators once, in both manners."""
    for manner, by_model in evaluations.items():
        estimators = [name for name in by_model if name != BASE]
        yield from (_difference(manner, by_model, *pair) for pair in combinations(estimators, 2))


def gains(evaluations: Evaluations) -> list[Gain]:
    found = {(one.manner, one.other): one.difference for one in against_base(evaluations)}
    sampled = evaluations["sampled"]
    return [
        Gain(name, found["sampled", name], found["greedy", name], _longer(sampled[BASE], sampled[name]))
        for name in sampled
        if name != BASE
    ]


def _difference(manner: str, by_model: Mapping[str, Judged], base: str, other: str) -> ModelDifference:
    return ModelDifference(manner, base, other, compare(by_model[base], by_model[other]).rows[ACCURACY])


def _longer(base: Judged, other: Judged) -> PairedDifference:
    return paired_difference(_lengths(base), _lengths(other))


def _lengths(judged: Judged) -> dict[str, float]:
    """Return the mean length of each problem's responses, in tokens."""
    by_problem: dict[str, list[float]] = defaultdict(list)
    for sample in judged.samples:
        if sample.num_tokens is not None:
            by_problem[sample.problem].append(sample.num_tokens)
    return {problem: fmean(lengths) for problem, lengths in by_problem.items()}
