"""The mixed task: math and code problems in one dataset. The `ability` of a row says how its responses are judged.

The module also holds a generator of short math problems with integer answers. The answer never occurs in the question,
so that copying a part of the question is never rewarded.
"""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, lcm
from typing import Any, ClassVar

from egpo.data import Dropped, Record, Row
from egpo.data.rows import as_text
from egpo.errors import InputError, nearest
from egpo.rewards.math import judge_math
from egpo.rewards.verdict import Verdict
from egpo.tasks.code import Code
from egpo.tasks.protocol import Problem, user_message
from egpo.tasks.sourced import Sizes, SourcedTask

ABILITIES = ("math", "code")
INSTRUCTION = "Think inside <think> and </think> first. Then give the answer inside \\boxed{}."


class Mixed(SourcedTask):
    """A task of math and code problems. By default a few dozen are generated, to try out the combined reward.

    `sandbox` is the kind of sandbox in which programs run. The value `ability` is a column of the rows and is also in
    `extra_info`, because verl passes only `extra_info` to a reward function.
    """

    data_source: ClassVar[str] = "mixed"
    generated_data_source: ClassVar[str] = "mixed"
    ability: ClassVar[str] = ""
    generated_sizes: ClassVar[Sizes] = Sizes(train=48, test=16)

    def __init__(self, *, sandbox: str | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        self._code = Code(sandbox=sandbox)

    def draw(self, rng: random.Random) -> Problem:
        if rng.random() < 0.5:
            return _mixed(self._code.draw(rng))
        drawn = draw_math_problem(rng)
        answer = f"<think>\n{drawn.thought}\n</think>\n\n\\boxed{{{drawn.answer}}}"
        return _math(drawn.question, drawn.answer, answer)

    def read(self, record: Record, index: int) -> Problem | Dropped:
        ability = record.value.get("ability")
        if ability not in ABILITIES:
            raise InputError(
                f"`ability` is {ability!r}, which is not `math` or `code`",
                where=record.where,
                fix=nearest(str(ability or "ability"), ABILITIES),
            )
        if ability == "code":
            problem = self._code.read(record, index)
            assert isinstance(problem, Problem)
            return _mixed(problem)
        question, answer = record.value.get("question"), record.value.get("answer")
        if not isinstance(question, str) or answer is None or answer == "":
            raise InputError(
                "the row has no `question` or no `answer`",
                where=record.where,
                fix="math rows must have the form {ability, question, answer}",
            )
        truth = as_text(answer)
        return _math(question, truth, f"<think>\nWorked out.\n</think>\n\n\\boxed{{{truth}}}")

    def key(self, row: Row) -> str:
        return str(row.extra.get("name") or row.prompt[-1]["content"])

    def judge(self, problem: Problem, text: str) -> Verdict:
        if problem.ability == "code":
            return self._code.judge(problem, text)
        return judge_math(text, problem.ground_truth)

    def gold(self, problem: Problem) -> str:
        return self._code.gold(problem) if problem.ability == "code" else str(problem.extra["answer"])


def _mixed(problem: Problem) -> Problem:
    extra = {**problem.extra, "ability": "code"}
    return Problem(problem.key, problem.messages, problem.ground_truth, "code", extra)


def _math(question: str, truth: str, answer: str) -> Problem:
    name = " ".join(question.split())
    extra = {"name": name, "answer": answer, "ability": "math"}
    return Problem(name, user_message(f"{question} {INSTRUCTION}"), truth, "math", extra)


@dataclass(frozen=True)
class MathProblem:
    """A generated math problem: the question, the thinking that solves it, and the answer, an integer as text."""

    question: str
    thought: str
    answer: str


def draw_math_problem(rng: random.Random) -> MathProblem:
    """Draw a math problem of a random kind. Problems whose answer occurs in the question are not returned."""
    kind = rng.choice(KINDS)
    problem = kind(rng)
    while problem.answer in re.findall(r"-?[0-9]+", problem.question):
        problem = kind(rng)
    return problem


def latex(value: Fraction) -> str:
    """Return a fraction as LaTeX: 3, -3, \\frac{3}{4} or -\\frac{3}{4}."""
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
    # 2^5 is larger than any modulus. A power below the modulus would be its own remainder.
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
