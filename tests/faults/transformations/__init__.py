"""Transformations of answers whose verdict is known in advance, and the tally of a reward's verdicts on them.

numbers.py     GSM8K: the number, its notation, what stands around it
formulas.py    math: a thousand generated answers, each with equal and unequal forms
calls.py       tool calls, judged by exact calls and by BFCL's possible answers
equations.py   Countdown
programs.py    code, in the sandbox

A transformation is a row of its module's table: a name, a kind, the verdict, and a function that writes the response
for a ground truth, or returns None where it does not apply (the sign of zero).
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from egpo.rewards.verdict import Verdict

RIGHT = "right"
"""The answer is right, and the rule of the reward accepts its form."""
WRONG = "wrong"
"""The answer is wrong: the verdict must never be right."""
REFUSED = "refused"
"""The answer is right for a reader, and the documented rule refuses its form: the price of strictness. The verdict must
be wrong, as documented; each counts as a false negative."""
UNDEFINED = "undefined"
"""Neither a reader nor the rule says. `why` gives the reason; the verdict must only not be failed."""


@dataclass(frozen=True)
class Transformation:
    """One way to write a response for a ground truth, and the verdict that it must get."""

    name: str
    kind: str
    verdict: str
    write: Callable[[Any], str | None]
    why: str = ""


@dataclass
class Tally:
    """The verdicts of one reward on transformed answers."""

    task: str
    truths: int = 0
    judgements: int = 0
    by_verdict: Counter[str] = field(default_factory=Counter)
    names: set[str] = field(default_factory=set)
    false_positives: list[str] = field(default_factory=list)
    false_negatives: Counter[str] = field(default_factory=Counter)
    """Right answers that are judged wrong although the rule accepts their form, by kind."""
    refused: Counter[str] = field(default_factory=Counter)
    """Right answers that the documented rule refuses, by kind."""
    undefined_right: int = 0
    failed: list[str] = field(default_factory=list)
    examples: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def note(self, how: Transformation, truth: str, text: str, verdict: Verdict) -> None:
        """Count one verdict."""
        self.judgements += 1
        self.by_verdict[how.verdict] += 1
        self.names.add(how.name)
        shown = f"{how.name}: {text[-160:]!r} for {truth[:100]!r}: {verdict.reason}"
        if verdict.failed:
            self.failed.append(shown)
        elif verdict.correct and how.verdict in (WRONG, REFUSED):
            self.false_positives.append(shown)
        elif not verdict.correct and how.verdict in (RIGHT, REFUSED):
            (self.refused if how.verdict == REFUSED else self.false_negatives)[how.kind] += 1
            if how.verdict == RIGHT and len(self.examples[how.name]) < 3:
                self.examples[how.name].append(shown)
        elif how.verdict == UNDEFINED:
            self.undefined_right += verdict.correct

    def add(self, other: "Tally") -> None:
        """Add the counts of another part of the same task."""
        self.truths += other.truths
        self.judgements += other.judgements
        self.by_verdict += other.by_verdict
        self.names |= other.names
        self.false_positives += other.false_positives
        self.false_negatives += other.false_negatives
        self.refused += other.refused
        self.undefined_right += other.undefined_right
        self.failed += other.failed
        for name, lines in other.examples.items():
            self.examples[name] = (self.examples[name] + lines)[:3]


def judge_all(
    task: str,
    truths: Sequence[Any],
    transformations: Callable[[Any], Iterable[Transformation]],
    judge: Callable[[Any, str], Verdict],
) -> Tally:
    """Judge every transformation of every ground truth."""
    tally = Tally(task, truths=len(truths))
    for truth in truths:
        for how in transformations(truth):
            text = how.write(truth)
            if text is not None:
                tally.note(how, str(truth), text, judge(truth, text))
    return tally
