"""The Countdown task: write an expression with +, -, * and / that equals a target and uses each number exactly once.

The module also holds the generator of solvable problems, and the search for solutions of the public dataset's problems.
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
from egpo.tasks.protocol import Problem, user_message
from egpo.tasks.sourced import Sizes, SourcedTask, require_choice, require_whole

PROMPT = (
    "Use each of the numbers {numbers} exactly once, with +, -, *, / and parentheses, to make {target}. "
    "Think inside <think> and </think>. Then give the expression alone inside <answer> and </answer>, "
    "for example <answer>(1 + 2) / 3</answer>."
)

_FIELDS = ("numbers", "target")
Mode = Literal["shaped", "binary"]


class Countdown(SourcedTask):
    """A task of Countdown problems: reach a target with arithmetic on given numbers.

    Generated problems have `min_numbers` to `max_numbers` numbers of at most `max_number`, and targets of at most
    `max_target`; all of them can be solved. `mode` of the reward is "shaped" or "binary". `prompt_format` is the text
    of the prompt, with the fields {numbers} and {target}.
    """

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
                f"min_numbers={min_numbers}, max_numbers={max_numbers}, max_number={max_number}, "
                f"max_target={max_target} are not allowed together",
                where="task countdown",
                fix="give 2 <= min_numbers <= max_numbers, and a max_number and max_target of at least 1",
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
            what = "the row has no `nums` (a list of whole numbers)"
            raise InputError(what, where=record.where, fix="rows must have the form {target, nums}")
        if type(target) is not int:
            what = "the row has no `target` (a whole number)"
            raise InputError(what, where=record.where, fix="rows must have the form {target, nums}")
        return self._problem(numbers, target, "")

    def key(self, row: Row) -> str:
        truth = _truth(row.ground_truth)
        return _key(truth.numbers, truth.target)

    def judge(self, problem: Problem, text: str) -> Verdict:
        truth = _truth(problem.ground_truth)
        return judge_countdown(text, truth.numbers, truth.target, mode=self.mode)

    def gold(self, problem: Problem) -> str:
        """Return the stored solution; if there is none, as in the public dataset, search for one."""
        if problem.extra.get("answer"):
            return str(problem.extra["answer"])
        truth = _truth(problem.ground_truth)
        term = solve(truth.numbers, truth.target)
        if term is None:
            fix = "remove this problem from the data"
            raise InputError("the problem has no solution", where=f"problem {problem.key}", fix=fix)
        return solution_text(term)

    def _problem(self, numbers: list[int], target: int, answer: str) -> Problem:
        text = self._prompt_format.format(numbers=numbers, target=target)
        truth = json.dumps({"numbers": numbers, "target": target})
        return Problem(_key(numbers, target), user_message(text), truth, self.ability, {"answer": answer})


def _require_format(prompt_format: object) -> None:
    """Raise InputError unless the only fields of the prompt format are `{numbers}` and `{target}`.

    Other fields are not safe: `{numbers.__class__}` would read attributes, and `{target:>1000000000}` would fill the
    memory.
    """
    where, fix = "task countdown", "use only the fields {numbers} and {target}; write {{ and }} for braces"
    if not isinstance(prompt_format, str):
        what = f"prompt_format={prompt_format!r:.60} is not text"
        raise InputError(what, where=where, fix="give a text with the fields {numbers} and {target}")
    try:
        fields = [part[1:] for part in Formatter().parse(prompt_format) if part[1] is not None]
    except ValueError as error:
        raise InputError(f"prompt_format is not a valid format ({error})", where=where, fix=fix) from error
    for name, form, conversion in fields:
        if name not in _FIELDS or form or conversion:
            shown = f"{name}{'!' + conversion if conversion else ''}{':' + form if form else ''}"
            raise InputError(f"prompt_format has a field that is not allowed: {{{shown:.60}}}", where=where, fix=fix)


@dataclass(frozen=True)
class _Truth:
    numbers: list[int]
    target: int


def _truth(text: str) -> _Truth:
    try:
        value = json.loads(text)
        return _Truth(value["numbers"], value["target"])
    except (ValueError, KeyError, TypeError) as error:
        what = f"the ground truth {text[:60]!r} is not one of Countdown, which has the form {{numbers, target}}"
        fix = "check that the data is of this task, or prepare it again with `egpo prepare countdown`"
        raise InputError(what, where="task countdown", fix=fix) from error


def _key(numbers: list[int], target: int) -> str:
    """Return the key that identifies a problem. The order of its numbers does not matter."""
    return f"{sorted(numbers)}={target}"


@dataclass(frozen=True)
class Term:
    """An arithmetic expression over some of a problem's numbers, its value, and the steps that compute it."""

    value: Fraction
    text: str
    steps: tuple[str, ...] = ()

    @property
    def inner(self) -> str:
        """The expression as part of a larger one: in parentheses, unless it is a single number."""
        return f"({self.text})" if self.steps else self.text


def number(value: int) -> Term:
    return Term(Fraction(value), str(value))


def join(left: Term, sign: str, right: Term) -> Term | None:
    """Return the expression `left sign right`, or None if it divides by zero."""
    if sign == "/" and right.value == 0:
        return None
    value = OPERATIONS[sign](left.value, right.value)
    steps = (
        *left.steps,
        *right.steps,
        f"{_number_text(left.value)} {sign} {_number_text(right.value)} = {_number_text(value)}",
    )
    return Term(value, f"{left.inner} {sign} {right.inner}", steps)


OPERATIONS: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
}


def draw_expression(rng: random.Random, numbers: Sequence[int], max_target: int) -> Term | None:
    """Draw an expression that uses each number once, with random operations in random order.

    Return None if an intermediate value is not a positive whole number, or if the result exceeds `max_target`. Most
    draws fail, so the values are computed first, and the text is written only on success.
    """
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
    """Return an expression that uses every number once and equals the target, or None if there is none.

    All expressions are tried, which is fast enough for up to five numbers.
    """
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


def _number_text(value: Fraction) -> str:
    return str(value) if value.denominator == 1 and value >= 0 else f"({value})"


def solution_text(term: Term) -> str:
    """Return a response that solves a problem: the steps as thinking, and the expression as the answer."""
    return f"<think>{'; '.join(term.steps)}</think>\n<answer>{term.text}</answer>"
