"""The GSM8K task: math word problems, whose solutions end with `#### N`.

The module also holds a generator of small word problems in the same format, for tests and small models. These are not
a benchmark.
"""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from egpo.data import Dropped, Record, Row
from egpo.errors import InputError
from egpo.rewards.gsm8k import judge_gsm8k
from egpo.rewards.verdict import Verdict
from egpo.tasks.protocol import Problem, user_message
from egpo.tasks.sourced import Sizes, SourcedTask, require_at_least, require_choice

INSTRUCTION = 'Let\'s think step by step and output the final answer after "####".'

Mode = Literal["binary", "shaped"]


class Gsm8k(SourcedTask):
    """A task of math word problems.

    The source is GSM8K on the hub (openai/gsm8k, `main`) or files of {question, answer}; without a source, small
    problems are generated. The column `data_source` is `openai/gsm8k` for rows of a source, and `gsm8k` for generated
    rows. `max_value` limits every number in a generated problem and its solution (None: only the templates limit them).
    `mode` of the reward is "binary" or "shaped".
    """

    data_source: ClassVar[str] = "openai/gsm8k"
    generated_data_source: ClassVar[str] = "gsm8k"
    ability: ClassVar[str] = "math"
    generated_sizes: ClassVar[Sizes] = Sizes(train=1024, test=128)
    hub_config: ClassVar[str | None] = "main"

    def __init__(self, *, mode: Mode = "binary", max_value: int | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        require_choice("gsm8k", "mode", mode, get_args(Mode))
        if max_value is not None:
            require_at_least("gsm8k", SMALLEST_MAX_VALUE, max_value=max_value)
        self.mode, self._max_value = mode, max_value

    def draw(self, rng: random.Random) -> Problem:
        story = draw_word_problem(rng, self._max_value)
        return self._problem(story.question, story.answer)

    def read(self, record: Record, index: int) -> Problem | Dropped:
        question, answer = record.value.get("question"), record.value.get("answer")
        if not isinstance(question, str) or not isinstance(answer, str):
            raise InputError(
                "the row has no `question` or no `answer`",
                where=record.where,
                fix="rows must have the form {question, answer}, both as text",
            )
        if "####" not in answer:
            raise InputError("the answer has no `####`", where=record.where, fix="end the answer with `#### N`")
        problem = self._problem(question, answer)
        _check_truth(problem.ground_truth, record.where)
        return problem

    def key(self, row: Row) -> str:
        return _key(row.prompt[-1]["content"].removesuffix(f" {INSTRUCTION}"))

    def judge(self, problem: Problem, text: str) -> Verdict:
        return judge_gsm8k(text, problem.ground_truth, mode=self.mode)

    def gold(self, problem: Problem) -> str:
        return str(problem.extra.get("answer") or f"#### {problem.ground_truth}")

    def _problem(self, question: str, answer: str) -> Problem:
        truth = answer.rpartition("####")[2].replace(",", "").replace("$", "").strip()
        return Problem(
            _key(question), user_message(f"{question} {INSTRUCTION}"), truth, self.ability, {"answer": answer}
        )


def _key(question: str) -> str:
    return " ".join(question.split())


def _check_truth(truth: str, where: str) -> None:
    """Raise InputError if the reward cannot read the ground truth, so that this is found before a run starts."""
    try:
        judge_gsm8k("", truth)
    except InputError as error:
        what = "the answer has no number after the last `####`"
        raise InputError(what, where=where, fix="end the answer with `#### N`") from error


NAMES = ("Ada", "Ben", "Chen", "Dora", "Emil", "Fatou", "Gita", "Hugo", "Ines", "Jonas", "Kofi", "Lena")
THINGS = ("apples", "books", "cards", "marbles", "pencils", "shells", "stamps", "stickers")


@dataclass(frozen=True)
class WordProblem:
    """A generated word problem: the question, and the solution in steps, which ends with `#### N`."""

    question: str
    answer: str

    @property
    def largest(self) -> int:
        """The largest number in the question and the solution."""
        return max(int(digits) for digits in re.findall(r"[0-9]+", f"{self.question} {self.answer}".replace(",", "")))


SMALLEST_MAX_VALUE = 20
"""Smallest allowed value of the setting `max_value`: with a smaller one, few templates can give a problem."""


def draw_word_problem(rng: random.Random, max_value: int | None = None) -> WordProblem:
    """Draw a problem from a random template.

    If it has a number above `max_value`, another problem is drawn from a random template. With a low `max_value`,
    templates with large products are therefore rare.
    """
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
