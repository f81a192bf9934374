"""Countdown's numbers: expressions drawn at random, and a search for one that hits a target."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations


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
