"""The code task: write a program that passes tests. Programs are run in a sandbox."""

import random
from typing import Any, ClassVar

from egpo.data import Dropped, Record, Row
from egpo.data.rows import as_text
from egpo.errors import InputError
from egpo.rewards.code import MODES, judge_code
from egpo.rewards.sandbox import choose_sandbox, working_sandbox
from egpo.rewards.sandbox.ground_truth import read_tests
from egpo.rewards.verdict import Verdict
from egpo.tasks.program_problems import draw_program_problem
from egpo.tasks.protocol import Problem, user_message
from egpo.tasks.sourced import Sizes, SourcedTask, require_choice

INSTRUCTION = "Think inside <think> and </think> first. Then give the whole of the code in one ```python block."
QUESTION_KEYS = ("question", "prompt", "problem")
TEST_KEYS = ("tests", "ground_truth", "input_output")


class Code(SourcedTask):
    """A task of programming problems. Generated problems come from 34 templates.

    Half of these ask for a function, which is tested by asserts, and half for a program, which is tested by its output.
    `sandbox` is the kind of sandbox in which answers run (None: $EGPO_SANDBOX, else bubblewrap). `mode` of the reward
    is "binary" or "fraction". If the sandbox does not work, judging the first answer raises EgpoError.
    """

    data_source: ClassVar[str] = "code"
    generated_data_source: ClassVar[str] = "code"
    ability: ClassVar[str] = "code"
    generated_sizes: ClassVar[Sizes] = Sizes(train=192, test=48)

    def __init__(self, *, sandbox: str | None = None, mode: str = "binary", **settings: Any) -> None:
        super().__init__(**settings)
        require_choice("code", "mode", mode, MODES)
        # Raises an error for an unknown sandbox. A sandbox that does not work is reported when an answer is judged.
        choose_sandbox(sandbox)
        self.mode, self._tier = mode, sandbox

    def draw(self, rng: random.Random) -> Problem:
        drawn = draw_program_problem(rng)
        return self._problem(drawn.name, drawn.statement, drawn.tests, drawn.solution)

    def read(self, record: Record, index: int) -> Problem | Dropped:
        question = next((record.value[k] for k in QUESTION_KEYS if isinstance(record.value.get(k), str)), None)
        tests = next((record.value[k] for k in TEST_KEYS if record.value.get(k)), None)
        if question is None or tests is None:
            raise InputError(
                f"the row has no `{'question' if question is None else 'tests'}`",
                where=record.where,
                fix="rows must have the form {question, tests, solution}; `solution` is optional",
            )
        _check_tests(as_text(tests), record.where)
        solution = str(record.value.get("solution") or "")
        return self._problem(" ".join(question.split()), question, as_text(tests), solution)

    def key(self, row: Row) -> str:
        return str(row.extra.get("name") or row.prompt[-1]["content"])

    def judge(self, problem: Problem, text: str) -> Verdict:
        return judge_code(text, problem.ground_truth, sandbox=working_sandbox(self._tier), mode=self.mode)

    def gold(self, problem: Problem) -> str:
        answer = str(problem.extra.get("answer") or "")
        if not answer:
            fix = "add a `solution` to the rows of the source"
            raise InputError("the row of the problem has no solution", where=f"problem {problem.key}", fix=fix)
        return answer

    def _problem(self, name: str, statement: str, tests: str, solution: str) -> Problem:
        answer = f"<think>\nDo what the statement says, step by step.\n</think>\n\n```python\n{solution.rstrip()}\n```"
        extra = {"name": name, "answer": answer if solution else ""}
        return Problem(name, user_message(f"{statement}\n\n{INSTRUCTION}"), tests, self.ability, extra)


def _check_tests(tests: str, where: str) -> None:
    """Raise InputError if the reward cannot read the tests, so that this is found before a run starts."""
    try:
        read_tests(tests)
    except InputError as error:
        fault = error.faults[0]
        raise InputError(f"the row's tests cannot be read ({fault.what})", where=where, fix=fault.fix) from error
