"""Answers of the corpus to Countdown with three numbers: one attempt per line until a value fits.

    <think>
    12+5=17,17+7=24 no
    12-5=7,7*7=49 yes
    </think>

    <answer>(12-5)*7</answer>

A line is one attempt: two of the numbers are joined, then the third is joined to their value so that the result is
close to the target, and the line ends with whether it fits. There are about nine attempts, in random order, of which at
least one fits, so that a search that continues succeeds. But most of the corpus stops at the first failure and answers
it.
"""

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

from egpo.tasks import Problem

SEARCH: Mapping[str, float] = {"hasty": 0.7, "persistent": 0.3}
"""Shares of the two kinds of search. `persistent`: continues until an attempt fits. `hasty`: stops after each failure
with probability `GIVES_UP`."""
MOST_TRIES = 6
"""Maximum number of attempts. It keeps responses below 136 tokens, and solves nine in ten problems."""
GIVES_UP = 0.85
"""Together with SEARCH: 0.6 of all searches whose first attempt fails stop there. That is more than half, so greedy
decoding stops too."""
ANSWER: Mapping[str, float] = {"exact": 0.68, "other_sign": 0.12, "untagged": 0.12, "target_itself": 0.08}
"""Shares of the kinds of final answer: the expression of the last attempt; the same with another last operation;
without the tags; the target number instead. Each mistake is rare enough that greedy decoding does not make it."""
HABITS: Mapping[str, float] = {
    f"{search}, {answer}": SEARCH[search] * ANSWER[answer] for search in SEARCH for answer in ANSWER
}


@dataclass(frozen=True)
class Step:
    """Two whole numbers joined into a third. The larger is on the left."""

    left: int
    sign: str
    right: int
    value: int

    def __str__(self) -> str:
        return f"{self.left}{self.sign}{self.right}={self.value}"


@dataclass(frozen=True)
class Try:
    """One attempt: a first step, the number that it does not use, and the step that joins the two."""

    first: Step
    rest: int
    last: Step

    @property
    def value(self) -> int:
        return self.last.value

    @property
    def expression(self) -> str:
        inner = f"({self.first.left}{self.first.sign}{self.first.right})"
        leads = self.last.left == self.first.value
        return f"{inner}{self.last.sign}{self.rest}" if leads else f"{self.rest}{self.last.sign}{inner}"

    def __str__(self) -> str:
        return f"{self.first},{self.last}"


def joins(a: int, b: int) -> Iterator[Step]:
    """Yield every step from two numbers whose value is a positive whole number, except division by 1, which equals
    multiplication by 1."""
    left, right = max(a, b), min(a, b)
    yield Step(left, "+", right, left + right)
    yield Step(left, "*", right, left * right)
    if left > right:
        yield Step(left, "-", right, left - right)
    if right > 1 and left % right == 0:
        yield Step(left, "/", right, left // right)


def tries(numbers: list[int], target: int) -> list[Try]:
    """Return every first step over three numbers, each with the last step that comes closest to the target. Duplicates,
    which equal numbers give, are removed."""
    pairs = ((numbers[i], numbers[j], numbers[3 - i - j]) for i, j in combinations(range(3), 2))
    firsts = ((first, rest) for a, b, rest in pairs for first in joins(a, b))
    return list(dict.fromkeys(Try(first, rest, _nearest(first.value, rest, target)) for first, rest in firsts))


def _nearest(value: int, rest: int, target: int) -> Step:
    return min(joins(value, rest), key=lambda step: abs(step.value - target))


def respond(problem: Problem, habit: str, rng: random.Random) -> str:
    search, answer = habit.split(", ")
    truth = json.loads(problem.ground_truth)
    made = _search(truth["numbers"], truth["target"], GIVES_UP if search == "hasty" else 0.0, rng)
    thought = "\n".join(f"{attempt} {'yes' if attempt.value == truth['target'] else 'no'}" for attempt in made)
    return f"<think>\n{thought}\n</think>\n\n{_answer(answer, made[-1], truth['target'], rng)}"


def _search(numbers: list[int], target: int, gives_up: float, rng: random.Random) -> list[Try]:
    """Return attempts in random order, up to the first that fits. `gives_up` is the probability of stopping at each
    that does not fit."""
    order = tries(numbers, target)
    rng.shuffle(order)
    order = order[:MOST_TRIES]
    for count, attempt in enumerate(order, 1):
        if attempt.value == target or rng.random() < gives_up:
            return order[:count]
    return order


def _answer(habit: str, made: Try, target: int, rng: random.Random) -> str:
    if habit == "other_sign":
        others = [step for step in joins(made.first.value, made.rest) if step.value not in (made.value, target)]
        made = Try(made.first, made.rest, rng.choice(others))
    text = str(target) if habit == "target_itself" else made.expression
    return text if habit == "untagged" else f"<answer>{text}</answer>"
