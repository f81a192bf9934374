"""Mixed: mathematics and code in one set; a row's `ability` says which judge it gets."""

import random
from typing import Any, ClassVar

from egpo.data import Dropped, Record, Row
from egpo.data.rows import as_text
from egpo.errors import InputError, nearest
from egpo.rewards.math import judge_math
from egpo.rewards.verdict import Verdict
from egpo.tasks.code import Code
from egpo.tasks.math_problems import draw_math_problem
from egpo.tasks.protocol import Problem, user
from egpo.tasks.sourced import Sizes, SourcedTask

ABILITIES = ("math", "code")
INSTRUCTION = "Think inside <think> and </think> first. Then give the answer inside \\boxed{}."


class Mixed(SourcedTask):
    """A few dozen rows for a dry run of the hybrid reward. `ability` is a column of its own and also in
    `extra_info`, because verl hands only the latter to a reward function."""

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
                f"`ability` is {ability!r}", where=record.where, fix=nearest(str(ability or "ability"), ABILITIES)
            )
        if ability == "code":
            problem = self._code.read(record, index)
            assert isinstance(problem, Problem)
            return _mixed(problem)
        question, answer = record.value.get("question"), record.value.get("answer")
        if not isinstance(question, str) or answer is None or answer == "":
            raise InputError(
                "no `question` and `answer`", where=record.where, fix="math rows are {ability, question, answer}"
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
    return Problem(name, user(f"{question} {INSTRUCTION}"), truth, "math", extra)
