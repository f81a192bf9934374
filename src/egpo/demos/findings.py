"""Paired comparisons of a demo's evaluations: estimators with the base model and with each other."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

from egpo.evals.paired import ACCURACY, Judged, PairedDifference, compare, paired_difference

BASE = "egpo-tiny"
Evaluations = Mapping[str, Mapping[str, Judged]]
"""Judged responses by manner (`sampled` or `greedy`), then by the name of the model; the first is the base model."""


@dataclass(frozen=True)
class ModelDifference:
    """The accuracy of `other` minus that of `base`, paired by problem. `manner` is `sampled` or `greedy`."""

    manner: str
    base: str
    other: str
    difference: PairedDifference


@dataclass(frozen=True)
class Gain:
    """One estimator's model compared with the base model: sampled accuracy, greedy accuracy, and response length.

    `length` is that of sampled responses, in tokens.
    """

    estimator: str
    sampled: PairedDifference
    greedy: PairedDifference
    length: PairedDifference

    @property
    def described(self) -> str:
        """The kind of gain in words: more reliable sampling (greedy accuracy unchanged), or newly solved problems."""
        if self.sampled.verdict != "better":
            return "sampled accuracy did not rise measurably"
        if self.greedy.verdict != "better":
            return "sampled accuracy rose, greedy not measurably: more reliable, no evidence of new abilities"
        became = {"better": "became longer: the model searches more", "worse": "became shorter"}
        length = became.get(self.length.verdict, "did not become measurably longer")
        return f"sampled and greedy accuracy rose, and responses {length}"


def against_base(evaluations: Evaluations) -> Iterator[ModelDifference]:
    """Yield the difference in accuracy of each estimator's model from the base model, sampled and greedy."""
    for manner, (base, *others) in evaluations.items():
        yield from (_difference(manner, evaluations[manner], base, other) for other in others)


def between_estimators(evaluations: Evaluations) -> Iterator[ModelDifference]:
    """Yield the difference in accuracy between each pair of estimators, sampled and greedy."""
    for manner, by_model in evaluations.items():
        _, *estimators = by_model
        yield from (_difference(manner, by_model, *pair) for pair in combinations(estimators, 2))


def gains(evaluations: Evaluations) -> list[Gain]:
    found = {(one.manner, one.other): one.difference for one in against_base(evaluations)}
    sampled = evaluations["sampled"]
    base, *others = sampled
    return [
        Gain(name, found["sampled", name], found["greedy", name], _longer(sampled[base], sampled[name]))
        for name in others
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
