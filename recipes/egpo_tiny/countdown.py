"""How the corpus answers Countdown with three numbers: one try after the other, until a value fits.

    <think>
    12+5=17,17+7=24 no
    12-5=7,7*7=49 yes
    </think>

    <answer>(12-5)*7</answer>

A line is one try: two of the numbers joined, then the third joined to their value, so as to come near the target, and
whether it fits. There are about nine tries, in no order, and at least one fits: who goes on gets there. But most of the
corpus stops at its first failure, and answers that.
"""

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

from egpo.tasks import Problem

SEARCH: Mapping[str, float] = {"hasty": 0.7, "persistent": 0.3}
"""`persistent` thoughts go on until a try fits. `hasty` ones stop after a failure, with probability `GIVES_UP`."""
MOST_TRIES = 6
"""Nobody goes on for longer: it keeps responses under 136 tokens, and nine in ten problems are solved by then."""
GIVES_UP = 0.85
"""With SEARCH: of all thoughts whose first try fails 0.6 stop there. It is more than half, so greedy decoding stops."""
ANSWER: Mapping[str, float] = {"exact": 0.68, "other_sign": 0.12, "untagged": 0.12, "target_itself": 0.08}
"""What becomes of the last try: its expression; with another last operation; without the tags; the bare target in its
place. Each slip is rare enough that greedy decoding does not make it."""
HABITS: Mapping[str, float] = {
    f"{search}, {answer}": SEARCH[search] * ANSWER[answer] for search in SEARCH for answer in ANSWER
}


@dataclass(frozen=True)
class Step:
    """Two whole numbers joined into a third: the larger stands on the left."""

    left: int
    sign: str
    right: int
    value: int

    def __str__(self) -> str:
        return f"{self.left}{self.sign}{self.right}={self.value}"


@dataclass(frozen=True)
class Try:
    """A first step, the number that it leaves over, and the step that joins the two."""

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
    """Every way to join two numbers that stays with positive whole ones; division by 1 is multiplication by 1."""
    left, right = max(a, b), min(a, b)
    yield Step(left, "+", right, left + right)
    yield Step(left, "*", right, left * right)
    if left > right:
        yield Step(left, "-", right, left - right)
    if right > 1 and left % right == 0:
        yield Step(left, "/", right, left // right)


def tries(numbers: list[int], target: int) -> list[Try]:
    """Every first step over three numbers, each with the last step that comes nearest to the target. Equal numbers
    give equal tries, of which one is kept."""
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
    """Tries in random order, up to the first that fits; `gives_up` is the probability to stop at one that does not."""
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
