"""Short mathematics whose answers are numbers, fractions or expressions, for the mixed set."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, lcm


@dataclass(frozen=True)
class MathProblem:
    """A question, the thought that solves it, and the answer in LaTeX."""

    question: str
    thought: str
    answer: str


def draw_math_problem(rng: random.Random) -> MathProblem:
    return rng.choice(KINDS)(rng)


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
    return MathProblem(
        f"What is ${latex(a)} + {latex(b)}$, as a fraction in lowest terms?", f"{a} + {b} = {a + b}.", latex(a + b)
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
    a, b = rng.randint(1, 9), rng.randint(1, 9)
    return MathProblem(
        f"Expand $(x + {a})(x + {b})$.", f"{a} + {b} = {a + b} and {a} * {b} = {a * b}.", f"x^2 + {a + b}x + {a * b}"
    )


def _power(rng: random.Random) -> MathProblem:
    base, exponent, modulus = rng.randint(2, 12), rng.randint(3, 20), rng.randint(5, 30)
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
