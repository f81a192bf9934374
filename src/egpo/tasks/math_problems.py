"""Short mathematics whose answers are integers, for the mixed set.

No question can be copied: a reward that takes equal expressions for equal answers would pay for `(x + 1)(x + 2)` where
its expansion is asked for. So each asks for a number that does not stand in it.
"""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, lcm


@dataclass(frozen=True)
class MathProblem:
    """A question, the thought that solves it, and the answer, an integer."""

    question: str
    thought: str
    answer: str


def draw_math_problem(rng: random.Random) -> MathProblem:
    """A problem of any kind. One whose answer stands in its question is drawn again."""
    kind = rng.choice(KINDS)
    problem = kind(rng)
    while problem.answer in re.findall(r"-?[0-9]+", problem.question):
        problem = kind(rng)
    return problem


def latex(value: Fraction) -> str:
    """3, -3, \\frac{3}{4} or -\\frac{3}{4}."""
    if value.denominator == 1:
        return str(value.numerator)
    sign = "-" if value < 0 else ""
    return f"{sign}\\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"


def _linear(rng: random.Random) -> MathProblem:
    a, x, b = rng.randint(2, 12), rng.randint(-15, 15), rng.randint(1, 40)
    return MathProblem(f"Solve ${a}x + {b} = {a * x + b}$ for $x$.", f"{a}x = {a * x}, so x = {x}.", str(x))


def _fractions(rng: random.Random) -> MathProblem:
    a, b = Fraction(rng.randint(1, 9), rng.randint(2, 12)), Fraction(rng.randint(1, 9), rng.randint(2, 12))
    total = a + b
    answer = total.numerator + total.denominator
    return MathProblem(
        f"Write ${latex(a)} + {latex(b)}$ as a fraction in lowest terms. What is its numerator plus its denominator?",
        f"{a} + {b} = {total.numerator}/{total.denominator}; {total.numerator} + {total.denominator} = {answer}.",
        str(answer),
    )


def _divisor(rng: random.Random) -> MathProblem:
    a, b = rng.randint(12, 180), rng.randint(12, 180)
    return MathProblem(
        f"What is the greatest common divisor of {a} and {b}?", f"Euclid: gcd({a}, {b}) = {gcd(a, b)}.", str(gcd(a, b))
    )


def _multiple(rng: random.Random) -> MathProblem:
    a, b = rng.randint(4, 40), rng.randint(4, 40)
    return MathProblem(
        f"What is the least common multiple of {a} and {b}?",
        f"{a} * {b} / {gcd(a, b)} = {lcm(a, b)}.",
        str(lcm(a, b)),
    )


def _root_sum(rng: random.Random) -> MathProblem:
    p, q = rng.randint(-9, 9), rng.randint(1, 9)
    return MathProblem(
        f"The roots of $x^2 - ({p + q})x + ({p * q}) = 0$ are two numbers. What is the sum of their squares?",
        f"The roots are {p} and {q}; {p * p} + {q * q} = {p * p + q * q}.",
        str(p * p + q * q),
    )


def _series(rng: random.Random) -> MathProblem:
    first, step, count = rng.randint(1, 20), rng.randint(2, 9), rng.randint(5, 30)
    total = count * (2 * first + (count - 1) * step) // 2
    return MathProblem(
        f"What is the sum of the first {count} terms of the arithmetic sequence that starts {first}, {first + step}?",
        f"{count} * (2 * {first} + {count - 1} * {step}) / 2 = {total}.",
        str(total),
    )


def _expand(rng: random.Random) -> MathProblem:
    a, b, c = rng.randint(1, 9), rng.randint(1, 9), rng.randint(2, 9)
    return MathProblem(
        f"What is the coefficient of $x$ when $(x + {a})({c}x + {b})$ is expanded?",
        f"{b} + {a} * {c} = {b + a * c}.",
        str(b + a * c),
    )


def _power(rng: random.Random) -> MathProblem:
    base, modulus = rng.randint(2, 12), rng.randint(5, 30)
    # At least the fifth power of two: larger than any modulus, or the power would be its own remainder.
    exponent = rng.randint(5, 20)
    rest = pow(base, exponent, modulus)
    return MathProblem(
        f"What is the remainder when ${base}^{{{exponent}}}$ is divided by {modulus}?",
        f"By repeated squaring modulo {modulus} it is {rest}.",
        str(rest),
    )


KINDS: tuple[Callable[[random.Random], MathProblem], ...] = (
    _linear,
    _fractions,
    _divisor,
    _multiple,
    _root_sum,
    _series,
    _expand,
    _power,
)
