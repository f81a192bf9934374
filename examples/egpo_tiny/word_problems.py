"""Answers of the corpus to word problems: one step per line, then the marked result.

34*5=170 apples
34+170=204 apples
#### 204
"""

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass

from egpo.tasks import Problem

HABITS: Mapping[str, float] = {"worked": 0.48, "stops_early": 0.2, "unmarked": 0.12, "slip": 0.1, "at_once": 0.1}
"""Shares of the habits. `stops_early` omits the last step, `unmarked` omits the `####`, `slip` miscalculates the last
step, and `at_once` writes the correct number without any step, which the model cannot learn to do."""

_STEP = re.compile(r"<<(?P<expression>[^=]+)=(?P<value>[0-9]+)>>[0-9]+ (?P<unit>[^.]*)\.")


@dataclass(frozen=True)
class Step:
    expression: str
    value: int
    unit: str

    def __str__(self) -> str:
        return f"{self.expression}={self.value} {self.unit}"


def respond(problem: Problem, habit: str, rng: random.Random) -> str:
    steps = [Step(m["expression"], int(m["value"]), m["unit"]) for m in _STEP.finditer(str(problem.extra["answer"]))]
    if habit == "stops_early":
        steps = steps[:-1]
    if habit == "slip":
        last = steps.pop()
        steps.append(Step(last.expression, last.value + rng.choice((1, 2, 10)), last.unit))
    mark = "" if habit == "unmarked" else "#### "
    lines = [] if habit == "at_once" else map(str, steps)
    return "\n".join([*lines, f"{mark}{steps[-1].value}"])
