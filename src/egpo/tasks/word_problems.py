"""Small word problems in GSM8K's form, for where GSM8K itself is not at hand. They are a stand-in, not a benchmark."""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass

NAMES = ("Ada", "Ben", "Chen", "Dora", "Emil", "Fatou", "Gita", "Hugo", "Ines", "Jonas", "Kofi", "Lena")
THINGS = ("apples", "books", "cards", "marbles", "pencils", "shells", "stamps", "stickers")


@dataclass(frozen=True)
class WordProblem:
    """A question, and its worked answer down to `#### N`."""

    question: str
    answer: str

    @property
    def largest(self) -> int:
        """The largest number in question and answer."""
        return max(int(digits) for digits in re.findall(r"[0-9]+", f"{self.question} {self.answer}".replace(",", "")))


SMALLEST_MAX_VALUE = 20
"""Under it hardly a story can be told."""


def draw_word_problem(rng: random.Random, max_value: int | None = None) -> WordProblem:
    """A problem of any story. One with a number over `max_value` is drawn again, of any story: the lower the bound,
    the rarer are those with large products."""
    problem = rng.choice(STORIES)(rng)
    while max_value is not None and problem.largest > max_value:
        problem = rng.choice(STORIES)(rng)
    return problem


def _step(expression: str, value: int, unit: str) -> str:
    return f"{expression} = <<{expression.replace(' ', '')}={value}>>{value} {unit}."


def _worked(question: str, *steps: str, result: int) -> WordProblem:
    return WordProblem(question, "\n".join([*steps, f"#### {result:,}"]))


def _gather(rng: random.Random) -> WordProblem:
    who, what, a, b = rng.choice(NAMES), rng.choice(THINGS), rng.randint(3, 90), rng.randint(2, 9)
    question = (
        f"{who} has {a} {what}. A friend has {b} times as many. How many {what} do the two of them have together?"
    )
    steps = (_step(f"{a} * {b}", a * b, what), _step(f"{a} + {a * b}", a + a * b, what))
    return _worked(question, *steps, result=a + a * b)


def _give_away(rng: random.Random) -> WordProblem:
    who, what, each, friends, left = (
        rng.choice(NAMES),
        rng.choice(THINGS),
        rng.randint(2, 12),
        rng.randint(2, 9),
        rng.randint(1, 40),
    )
    total = each * friends + left
    question = (
        f"{who} has {total} {what} and gives {each} of them to each of {friends} friends. How many {what} are left?"
    )
    given = each * friends
    return _worked(
        question, _step(f"{each} * {friends}", given, what), _step(f"{total} - {given}", left, what), result=left
    )


def _wages(rng: random.Random) -> WordProblem:
    who, rate, hours, days = rng.choice(NAMES), rng.randint(11, 45), rng.randint(3, 9), rng.randint(2, 24)
    question = (
        f"{who} earns ${rate} an hour and works {hours} hours a day. How many dollars does {who} earn in {days} days?"
    )
    daily = rate * hours
    steps = (_step(f"{rate} * {hours}", daily, "dollars a day"), _step(f"{daily} * {days}", daily * days, "dollars"))
    return _worked(question, *steps, result=daily * days)


def _journey(rng: random.Random) -> WordProblem:
    slow, fast, first, second = rng.randint(20, 60), rng.randint(61, 110), rng.randint(1, 6), rng.randint(1, 6)
    question = (
        f"A train runs {first} hours at {slow} km an hour and then {second} hours at {fast} km an hour. "
        "How many kilometres does it run in all?"
    )
    a, b = slow * first, fast * second
    steps = (
        _step(f"{slow} * {first}", a, "km"),
        _step(f"{fast} * {second}", b, "km"),
        _step(f"{a} + {b}", a + b, "km"),
    )
    return _worked(question, *steps, result=a + b)


def _change(rng: random.Random) -> WordProblem:
    who, price, count, rest = rng.choice(NAMES), rng.randint(2, 19), rng.randint(2, 12), rng.randint(1, 30)
    paid = price * count + rest
    question = (
        f"{who} buys {count} tickets at ${price} each and pays with ${paid}. How many dollars does {who} get back?"
    )
    cost = price * count
    return _worked(
        question,
        _step(f"{count} * {price}", cost, "dollars"),
        _step(f"{paid} - {cost}", rest, "dollars"),
        result=rest,
    )


def _boxes(rng: random.Random) -> WordProblem:
    what, per_box, boxes, crates = rng.choice(THINGS), rng.randint(4, 48), rng.randint(2, 20), rng.randint(2, 30)
    question = (
        f"A box holds {per_box} {what}, and a crate holds {boxes} boxes. How many {what} are there in {crates} crates?"
    )
    crate = per_box * boxes
    steps = (_step(f"{per_box} * {boxes}", crate, what), _step(f"{crate} * {crates}", crate * crates, what))
    return _worked(question, *steps, result=crate * crates)


def _ages(rng: random.Random) -> WordProblem:
    first, second = rng.sample(NAMES, 2)
    young, times, years = rng.randint(3, 15), rng.randint(2, 5), rng.randint(2, 20)
    question = (
        f"{first} is {young} years old, and {second} is {times} times as old. "
        f"How old will {second} be in {years} years?"
    )
    old = young * times
    steps = (_step(f"{young} * {times}", old, "years"), _step(f"{old} + {years}", old + years, "years"))
    return _worked(question, *steps, result=old + years)


def _garden(rng: random.Random) -> WordProblem:
    who, long, wide, per = rng.choice(NAMES), rng.randint(4, 40), rng.randint(3, 30), rng.randint(2, 9)
    question = (
        f"{who}'s garden is {long} metres long and {wide} metres wide. A metre of fence costs ${per}. "
        "How many dollars does a fence all the way round cost?"
    )
    half, around = long + wide, 2 * (long + wide)
    steps = (
        _step(f"{long} + {wide}", half, "m"),
        _step(f"{half} * 2", around, "m"),
        _step(f"{around} * {per}", around * per, "dollars"),
    )
    return _worked(question, *steps, result=around * per)


STORIES: tuple[Callable[[random.Random], WordProblem], ...] = (
    _gather,
    _give_away,
    _wages,
    _journey,
    _change,
    _boxes,
    _ages,
    _garden,
)
