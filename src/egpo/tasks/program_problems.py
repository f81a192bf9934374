"""Programming problems drawn from the templates: a statement, tests, and a program that passes them."""

import inspect
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from egpo.tasks.program_templates import TEMPLATES, Template, Value

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
    """`name` is the template with its parameters: the same name is the same problem, whatever its tests."""

    name: str
    statement: str
    tests: str
    solution: str


def draw_program_problem(rng: random.Random) -> ProgramProblem:
    """Half of them ask for a function (tests are asserts), half for a program (tests are inputs and outputs)."""
    template = rng.choice(TEMPLATES)
    parameters = {name: rng.choice(list(values)) for name, values in template.parameters.items()}
    cases = _cases(rng, template, parameters)
    name = f"{template.solution.__name__}({', '.join(f'{k}={v}' for k, v in parameters.items())})"
    build = _as_function if rng.random() < 0.5 else _as_program
    return build(name, template, parameters, cases)


def _cases(rng: random.Random, template: Template, parameters: dict[str, Any]) -> list[tuple[Value, Value]]:
    """Inputs with their outputs; not all outputs alike, or a constant would pass."""
    while True:
        inputs = [_input(rng, template.takes) for _ in range(NUM_TESTS)]
        # Each call gets its own list: a solution that changed its argument would spoil the test.
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


def _as_function(name: str, template: Template, parameters: dict[str, Any], cases: list[Any]) -> ProgramProblem:
    takes = ARGUMENT[template.takes].partition(":")[0]
    statement = (
        f"Write a Python function `solve({ARGUMENT[template.takes]})` that returns {_gives(template, parameters)}."
    )
    tests = {"assert": [f"assert solve({given!r}) == {output!r}" for given, output in cases]}
    wrapper = f"def solve({takes}):\n    return {_invocation(template, takes, parameters)}\n"
    return ProgramProblem(name, statement, json.dumps(tests), f"{_source(template.solution)}\n\n{wrapper}")


def _as_program(name: str, template: Template, parameters: dict[str, Any], cases: list[Any]) -> ProgramProblem:
    kind = type(cases[0][1])
    statement = (
        f"Write a Python program that reads {STDIN[template.takes]} and works out "
        f"{_gives(template, parameters)}. {STDOUT[kind]}"
    )
    tests = {"inputs": [f"{_line(given)}\n" for given, _ in cases], "outputs": [f"{_line(out)}\n" for _, out in cases]}
    main = f"answer = {_invocation(template, PARSE[template.takes], parameters)}\n{PRINT.get(kind, PRINT[int])}\n"
    return ProgramProblem(name, statement, json.dumps(tests), f"{_source(template.solution)}\n\n{main}")


def _gives(template: Template, parameters: dict[str, Any]) -> str:
    return template.gives.format(**parameters)


@cache
def _source(solution: Callable[..., Value]) -> str:
    return inspect.getsource(solution)


def _invocation(template: Template, argument: str, parameters: dict[str, Any]) -> str:
    values = ", ".join(repr(value) for value in parameters.values())
    return f"{template.solution.__name__}({argument}, {values})"


def _line(value: Value) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
