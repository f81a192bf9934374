"""Generates programming problems from templates: a statement, tests, and a program that passes them.

To add a template, add its solution to `programs.py` and a row to TEMPLATES, and increase `Code.version`, because the
generated data changes.
"""

import inspect
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from egpo.tasks import programs

Value = int | bool | str | list[int]
LETTERS = tuple("aeinorst")


@dataclass(frozen=True)
class ProgramTemplate:
    """A kind of programming problem, with parameters that are drawn at random.

    `solution` is the function that solves it. `takes` is the kind of input: "numbers", "number" or "text". `gives` says
    what the function returns, with the parameters in braces. `parameters` maps each parameter to its possible values.
    """

    solution: Callable[..., Value]
    takes: str
    gives: str
    parameters: Mapping[str, Sequence[int | str]]


def _numbers(solution: Callable[..., Value], gives: str, **parameters: Sequence[int | str]) -> ProgramTemplate:
    return ProgramTemplate(solution, "numbers", gives, parameters)


def _number(solution: Callable[..., Value], gives: str, **parameters: Sequence[int | str]) -> ProgramTemplate:
    return ProgramTemplate(solution, "number", gives, parameters)


def _text(solution: Callable[..., Value], gives: str, **parameters: Sequence[int | str]) -> ProgramTemplate:
    return ProgramTemplate(solution, "text", gives, parameters)


TEMPLATES: tuple[ProgramTemplate, ...] = (
    _numbers(programs.count_multiples, "how many of the numbers are multiples of {divisor}", divisor=range(2, 14)),
    _numbers(programs.sum_above, "the sum of the numbers greater than {bound}", bound=range(-5, 16)),
    _numbers(
        programs.keep_remainder,
        "the numbers that leave the remainder {remainder} when divided by {divisor}, in order",
        divisor=range(3, 8),
        remainder=range(3),
    ),
    _numbers(
        programs.every_kth, "every number at a position, counted from 1, that {k} divides, in order", k=range(2, 7)
    ),
    _numbers(programs.rotate_left, "the numbers rotated {steps} places to the left", steps=range(1, 9)),
    _numbers(
        programs.clip_all,
        "the numbers with those below {low} raised to {low} and those above {high} lowered to {high}",
        low=range(-6, 3),
        high=range(4, 15),
    ),
    _numbers(
        programs.window_sums,
        "the sums of each {width} neighbouring numbers, in order; nothing if there are fewer",
        width=range(2, 6),
    ),
    _numbers(
        programs.count_pairs, "the number of pairs of positions whose numbers add up to {total}", total=range(-4, 18)
    ),
    _numbers(
        programs.kth_largest,
        "the number at rank {k} from the largest down, repeated numbers counted once; -1 if there is none",
        k=range(2, 6),
    ),
    _numbers(
        programs.longest_run_above,
        "the length of the longest run of neighbours that are all greater than {bound}",
        bound=range(-5, 12),
    ),
    _numbers(
        programs.first_index_above,
        "the position, counted from 0, of the first number greater than {bound}; -1 if there is none",
        bound=range(19),
    ),
    _numbers(
        programs.weighted_sum,
        "the sum over all positions, counted from 1, of the number times the position times {factor}",
        factor=range(2, 12),
    ),
    _numbers(
        programs.differences,
        "each number's difference from the one {lag} places before it (later minus earlier), in order",
        lag=range(1, 5),
    ),
    _numbers(
        programs.chunk_maxima,
        "the largest number of each block of {size}, in order; the last block may be shorter",
        size=range(2, 6),
    ),
    _numbers(programs.without_value, "the numbers that are not {value}, in order", value=range(-5, 16)),
    _numbers(
        programs.running_total_reaches,
        "how many numbers, from the first on, must be added up until the total is at least {goal}; 0 if never",
        goal=range(10, 60, 3),
    ),
    _numbers(
        programs.alternating_power_sum,
        "the first number to the power of {power}, minus the second to that power, plus the third, and so on",
        power=range(1, 5),
    ),
    _numbers(
        programs.closest_to,
        "the number closest to {target}; the smaller of two equally close; 0 if there is none",
        target=range(-3, 18),
    ),
    _number(
        programs.digits_in_base, "the digits of the number in base {base}, most significant first", base=range(2, 17)
    ),
    _number(
        programs.sum_of_multiples_below,
        "the sum of the whole numbers from 0 up to but without the given one that {first} or {second} divides",
        first=range(2, 7),
        second=range(7, 12),
    ),
    _number(
        programs.power_remainder,
        "the remainder of the number to the power of {exponent} when divided by {modulus}",
        exponent=range(2, 9),
        modulus=range(7, 31, 2),
    ),
    _number(
        programs.steps_to_one,
        "the number of steps down to 1, where a step divides by {factor} if that leaves no remainder, "
        "and subtracts 1 otherwise",
        factor=range(2, 8),
    ),
    _number(programs.count_divisors_above, "how many divisors greater than {bound} the number has", bound=range(1, 12)),
    _number(
        programs.linear_recurrence,
        "the term x(n), n being the number, of the sequence x(0) = {start}, x(1) = {start}, "
        "x(n) = x(n-1) + {step} * x(n-2)",
        start=range(1, 7),
        step=range(1, 5),
    ),
    _number(
        programs.is_multiple_of_digit_sum,
        "whether the sum of the number's digits plus {extra} divides the number",
        extra=range(10),
    ),
    _text(
        programs.shift_letters,
        "the text with each lower-case letter moved {steps} places on in the alphabet, from z back to a",
        steps=range(1, 25),
    ),
    _text(programs.count_letter, "how often the letter {letter} is in the text", letter=LETTERS),
    _text(
        programs.long_words,
        "the words of at least {length} letters, in order, with a space between them",
        length=range(3, 8),
    ),
    _text(
        programs.reverse_long_words,
        "the words with a space between them, each word of at least {length} letters spelt backwards",
        length=range(3, 8),
    ),
    _text(programs.drop_letter, "the text without any letter {letter}", letter=LETTERS),
    _text(
        programs.every_kth_letter,
        "every character at a position, counted from 1, that {k} divides, in order, as one text",
        k=range(2, 7),
    ),
    _text(programs.words_with_letter, "how many of the words hold the letter {letter}", letter=LETTERS),
    _text(programs.repeat_letters, "the text with every character repeated {times} times", times=range(2, 7)),
    _text(programs.has_word_of_length, "whether one of the words has exactly {length} letters", length=range(3, 8)),
)


NUM_TESTS = 8
WORDS = (
    "amber", "anchor", "basin", "canoe", "cedar", "coral", "desert", "elm", "ember", "fern", "forest", "gate",
    "harbor", "hill", "island", "lantern", "leaf", "meadow", "moon", "nest", "ocean", "orchard", "pine", "river",
    "sand", "sea", "stone", "storm", "summit", "tide", "train", "valley", "wind", "winter", "wren",
)  # fmt: skip

ARGUMENT = {"numbers": "numbers: list[int]", "number": "number: int", "text": "text: str"}
STDIN = {
    "numbers": "one line of whole numbers with spaces between them (it may be empty)",
    "number": "one line with a whole number",
    "text": "one line of text",
}
PARSE = {"numbers": "[int(word) for word in input().split()]", "number": "int(input())", "text": "input()"}
STDOUT = {
    list: "Print the numbers on one line with spaces between them.",
    bool: "Print yes or no.",
    int: "Print it.",
    str: "Print it.",
}
PRINT = {list: 'print(*answer, sep=" ")', bool: 'print("yes" if answer else "no")', int: "print(answer)"}


@dataclass(frozen=True)
class ProgramProblem:
    """A generated programming problem. `name` is the template with its parameters.

    Problems with the same name are the same problem, even if their tests differ.
    """

    name: str
    statement: str
    tests: str
    solution: str


def draw_program_problem(rng: random.Random) -> ProgramProblem:
    """Draw a programming problem.

    Half of the problems ask for a function, which is tested by asserts, and half for a program, which is tested by
    inputs and outputs.
    """
    template = rng.choice(TEMPLATES)
    parameters = {name: rng.choice(list(values)) for name, values in template.parameters.items()}
    cases = _cases(rng, template, parameters)
    name = f"{template.solution.__name__}({', '.join(f'{k}={v}' for k, v in parameters.items())})"
    build = _as_function if rng.random() < 0.5 else _as_program
    return build(name, template, parameters, cases)


def _cases(rng: random.Random, template: ProgramTemplate, parameters: dict[str, Any]) -> list[tuple[Value, Value]]:
    """Return random inputs with their outputs. The outputs are not all equal: otherwise a constant would pass."""
    while True:
        inputs = [_input(rng, template.takes) for _ in range(NUM_TESTS)]
        # Each call gets its own copy, in case the solution changes its argument.
        cases = [(given, template.solution(_copy(given), **parameters)) for given in inputs]
        if len({repr(output) for _, output in cases}) > 1:
            return cases


def _copy(value: Value) -> Value:
    return list(value) if isinstance(value, list) else value


def _input(rng: random.Random, takes: str) -> Value:
    if takes == "numbers":
        return [rng.randint(-9, 20) for _ in range(rng.randint(1, 12))]
    if takes == "number":
        return rng.randint(1, 60)
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 6)))


def _as_function(name: str, template: ProgramTemplate, parameters: dict[str, Any], cases: list[Any]) -> ProgramProblem:
    takes = ARGUMENT[template.takes].partition(":")[0]
    statement = (
        f"Write a Python function `solve({ARGUMENT[template.takes]})` that returns {_gives(template, parameters)}."
    )
    tests = {"assert": [f"assert solve({given!r}) == {output!r}" for given, output in cases]}
    wrapper = f"def solve({takes}):\n    return {_invocation(template, takes, parameters)}\n"
    return ProgramProblem(name, statement, json.dumps(tests), f"{_source(template.solution)}\n\n{wrapper}")


def _as_program(name: str, template: ProgramTemplate, parameters: dict[str, Any], cases: list[Any]) -> ProgramProblem:
    kind = type(cases[0][1])
    statement = (
        f"Write a Python program that reads {STDIN[template.takes]} and works out "
        f"{_gives(template, parameters)}. {STDOUT[kind]}"
    )
    tests = {"inputs": [f"{_line(given)}\n" for given, _ in cases], "outputs": [f"{_line(out)}\n" for _, out in cases]}
    main = f"answer = {_invocation(template, PARSE[template.takes], parameters)}\n{PRINT.get(kind, PRINT[int])}\n"
    return ProgramProblem(name, statement, json.dumps(tests), f"{_source(template.solution)}\n\n{main}")


def _gives(template: ProgramTemplate, parameters: dict[str, Any]) -> str:
    return template.gives.format(**parameters)


@cache
def _source(solution: Callable[..., Value]) -> str:
    return inspect.getsource(solution)


def _invocation(template: ProgramTemplate, argument: str, parameters: dict[str, Any]) -> str:
    values = ", ".join(repr(value) for value in parameters.values())
    return f"{template.solution.__name__}({argument}, {values})"


def _line(value: Value) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
