"""GSM8K: word problems whose worked answer ends in `#### N`."""

import random
from typing import Any, ClassVar, Literal, get_args

from egpo.data import Dropped, Record, Row
from egpo.errors import InputError
from egpo.rewards.gsm8k import judge_gsm8k
from egpo.rewards.verdict import Verdict
from egpo.tasks.protocol import Problem, user
from egpo.tasks.sourced import Sizes, SourcedTask, require_at_least, require_choice
from egpo.tasks.word_problems import SMALLEST_MAX_VALUE, draw_word_problem

INSTRUCTION = 'Let\'s think step by step and output the final answer after "####".'

Mode = Literal["binary", "shaped"]


class Gsm8k(SourcedTask):
    """The real set comes from the hub (openai/gsm8k, `main`) or from {question, answer} files. Without a source a
    generator of small word problems stands in, and its rows say so: their data_source is `gsm8k`, without an owner.
    `max_value` bounds every number of a generated problem and of its worked answer (None: only the stories do).
    `mode` is the reward's: "binary" or "shaped"."""

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
                "no `question` and `answer`", where=record.where, fix="rows are {question, answer}, both text"
            )
        if "####" not in answer:
            raise InputError("the answer has no `####`", where=record.where, fix="end it with `#### N`")
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
        return Problem(_key(question), user(f"{question} {INSTRUCTION}"), truth, self.ability, {"answer": answer})


def _key(question: str) -> str:
    return " ".join(question.split())


def _check_truth(truth: str, where: str) -> None:
    """The judge would refuse it too, but only in the middle of a run."""
    try:
        judge_gsm8k("", truth)
    except InputError as error:
        raise InputError("no number after the last `####`", where=where, fix="end the answer with `#### N`") from error
