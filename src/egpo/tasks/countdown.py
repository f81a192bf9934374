"""Countdown's numbers: expressions drawn at random, and a search for one that hits a target.

Countdown: reach the target with every number used once.
"""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from string import Formatter
from typing import Any, ClassVar, Literal, get_args

from egpo.data import Dropped, Record, Row
from egpo.errors import InputError
from egpo.rewards.countdown import judge_countdown
from egpo.rewards.verdict import Verdict
from egpo.tasks.protocol import Problem, user
from egpo.tasks.sourced import Sizes, SourcedTask, require_choice, require_whole


@dataclass(frozen=True)
class Term:
    """An expression over some of the numbers, its value, and the steps that lead to it."""

    value: Fraction
    text: str
    steps: tuple[str, ...] = ()

    @property
    def inner(self) -> str:
        """The text inside a larger expression."""
        return f"({self.text})" if self.steps else self.text


def number(value: int) -> Term:
    return Term(Fraction(value), str(value))


def join(left: Term, sign: str, right: Term) -> Term | None:
    """`left sign right`; None where it divides by zero."""
    if sign == "/" and right.value == 0:
        return None
    value = OPERATIONS[sign](left.value, right.value)
    steps = (*left.steps, *right.steps, f"{_say(left.value)} {sign} {_say(right.value)} = {_say(value)}")
    return Term(value, f"{left.inner} {sign} {right.inner}", steps)


OPERATIONS: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
}


def draw_expression(rng: random.Random, numbers: Sequence[int], max_target: int) -> Term | None:
    """Every number used once, joined in random order; None where a step leaves the positive whole numbers, or the
    end is beyond `max_target`. Most draws fail, so values are tried first and text is written for those that hold."""
    values, joins = list(numbers), []
    while len(values) > 1:
        i, j, sign = rng.randrange(len(values)), rng.randrange(len(values) - 1), rng.choice("+-*/")
        left, right = values.pop(i), values.pop(j)
        value = _whole(left, sign, right)
        if value is None:
            return None
        values.append(value)
        joins.append((i, j, sign))
    return _replay(numbers, joins) if values[0] <= max_target else None


def _whole(left: int, sign: str, right: int) -> int | None:
    if sign == "+":
        return left + right
    if sign == "*":
        return left * right
    if sign == "-":
        return left - right if left > right else None
    return left // right if left % right == 0 else None


def _replay(numbers: Sequence[int], joins: list[tuple[int, int, str]]) -> Term:
    terms = [number(n) for n in numbers]
    for i, j, sign in joins:
        joined = join(terms.pop(i), sign, terms.pop(j))
        assert joined is not None
        terms.append(joined)
    return terms[0]


def solve(numbers: Sequence[int], target: int) -> Term | None:
    """An expression that uses every number once and equals the target, or None. Exhaustive: for up to five numbers."""
    return next((term for term in _reachable([number(n) for n in numbers]) if term.value == target), None)


def _reachable(terms: list[Term]) -> Iterator[Term]:
    if len(terms) == 1:
        yield terms[0]
        return
    for i, j in combinations(range(len(terms)), 2):
        rest = [term for k, term in enumerate(terms) if k not in (i, j)]
        for joined in _joins(terms[i], terms[j]):
            yield from _reachable([*rest, joined])


def _joins(a: Term, b: Term) -> Iterator[Term]:
    for left, sign, right in ((a, "+", b), (a, "*", b), (a, "-", b), (b, "-", a), (a, "/", b), (b, "/", a)):
        joined = join(left, sign, right)
        if joined is not None:
            yield joined


def _say(value: Fraction) -> str:
    return str(value) if value.denominator == 1 and value >= 0 else f"({value})"


PROMPT = (
    "Use each of the numbers {numbers} exactly once, with +, -, *, / and parentheses, to make {target}. "
    "Think inside <think> and </think>. Then give the expression alone inside <answer> and </answer>, "
    "for example <answer>(1 + 2) / 3</answer>."
)

_FIELDS = ("numbers", "target")
Mode = Literal["shaped", "binary"]


class Countdown(SourcedTask):
    """Generated problems have `min_numbers` to `max_numbers` numbers up to `max_number`, and targets up to
    `max_target`, solvable by construction. `mode` is the reward's: "shaped" or "binary"."""

    data_source: ClassVar[str] = "countdown"
    generated_data_source: ClassVar[str] = "countdown"
    ability: ClassVar[str] = "math"
    generated_sizes: ClassVar[Sizes] = Sizes(train=4096, test=512)
    source_sizes: ClassVar[Sizes | None] = Sizes(train=327_680, test=1_024)

    def __init__(
        self,
        *,
        mode: Mode = "shaped",
        min_numbers: int = 3,
        max_numbers: int = 4,
        max_number: int = 99,
        max_target: int = 99,
        prompt_format: str = PROMPT,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        require_choice("countdown", "mode", mode, get_args(Mode))
        require_whole(
            "countdown",
            min_numbers=min_numbers,
            max_numbers=max_numbers,
            max_number=max_number,
            max_target=max_target,
        )
        if not 2 <= min_numbers <= max_numbers or max_number < 1 or max_target < 1:
            raise InputError(
                f"min_numbers={min_numbers}, max_numbers={max_numbers}, max_number={max_number}",
                where="task countdown",
                fix="give 2 <= min_numbers <= max_numbers, and positive limits",
            )
        _require_format(prompt_format)
        self.mode, self._prompt_format = mode, prompt_format
        self._num_numbers, self._max_number, self._max_target = (min_numbers, max_numbers), max_number, max_target

    def draw(self, rng: random.Random) -> Problem:
        while True:
            numbers = [rng.randint(1, self._max_number) for _ in range(rng.randint(*self._num_numbers))]
            term = draw_expression(rng, numbers, self._max_target)
            if term is not None:
                return self._problem(numbers, int(term.value), solution_text(term))

    def read(self, record: Record, index: int) -> Problem | Dropped:
        numbers, target = record.value.get("nums", record.value.get("numbers")), record.value.get("target")
        if not isinstance(numbers, list) or not numbers or not all(type(n) is int for n in numbers):
            raise InputError("no `nums`, a list of whole numbers", where=record.where, fix="rows are {target, nums}")
        if type(target) is not int:
            raise InputError("no `target`, a whole number", where=record.where, fix="rows are {target, nums}")
        return self._problem(numbers, target, "")

    def key(self, row: Row) -> str:
        truth = _truth(row.ground_truth)
        return _key(truth.numbers, truth.target)

    def judge(self, problem: Problem, text: str) -> Verdict:
        truth = _truth(problem.ground_truth)
        return judge_countdown(text, truth.numbers, truth.target, mode=self.mode)

    def gold(self, problem: Problem) -> str:
        """The stored solution, or one that a search finds (rows of the public set have none)."""
        if problem.extra.get("answer"):
            return str(problem.extra["answer"])
        truth = _truth(problem.ground_truth)
        term = solve(truth.numbers, truth.target)
        if term is None:
            raise InputError("has no solution", where=f"problem {problem.key}", fix="drop it from the data")
        return solution_text(term)

    def _problem(self, numbers: list[int], target: int, answer: str) -> Problem:
        text = self._prompt_format.format(numbers=numbers, target=target)
        truth = json.dumps({"numbers": numbers, "target": target})
        return Problem(_key(numbers, target), user(text), truth, self.ability, {"answer": answer})


def _require_format(prompt_format: object) -> None:
    """Its fields are plain names: `{numbers.__class__}` would read attributes, `{target:>1000000000}` fill memory."""
    where, fix = "task countdown", "its fields are {numbers} and {target}, as they are; {{ and }} are braces"
    if not isinstance(prompt_format, str):
        raise InputError(f"prompt_format={prompt_format!r:.60}", where=where, fix="give text")
    try:
        fields = [part[1:] for part in Formatter().parse(prompt_format) if part[1] is not None]
    except ValueError as error:
        raise InputError(f"bad prompt_format ({error})", where=where, fix=fix) from error
    for name, form, conversion in fields:
        if name not in _FIELDS or form or conversion:
            shown = f"{name}{'!' + conversion if conversion else ''}{':' + form if form else ''}"
            raise InputError(f"prompt_format has a field {{{shown:.60}}}", where=where, fix=fix)


@dataclass(frozen=True)
class _Truth:
    numbers: list[int]
    target: int


def _truth(text: str) -> _Truth:
    try:
        value = json.loads(text)
        return _Truth(value["numbers"], value["target"])
    except (ValueError, KeyError, TypeError) as error:
        what = f"not a Countdown ground truth: {text[:60]!r}"
        raise InputError(
            what, where="task countdown", fix="it is {numbers, target}; is this another task's data?"
        ) from error


def _key(numbers: list[int], target: int) -> str:
    """Order does not matter: [1, 2, 3] and [3, 2, 1] for one target are the same problem."""
    return f"{sorted(numbers)}={target}"


def solution_text(term: Term) -> str:
    """A response that gives the expression, with its steps as the thought."""
    return f"<think>{'; '.join(term.steps)}</think>\n<answer>{term.text}</answer>"
