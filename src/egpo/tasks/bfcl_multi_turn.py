"""The task `bfcl_multi_turn`: BFCL's multi-turn cases as episodes, with a declared split.

BFCL is a test set. Train on the split `train` only, and report results on the split `test` only: the engine records the
cases that were trained on (`egpo.environments.bfcl.cases.write_trained_cases`), and evaluations refuse them.
"""

from collections.abc import Sequence
from typing import ClassVar

from egpo.data.rows import SPLITS, Message
from egpo.environments import EnvironmentHost
from egpo.environments.bfcl.cases import VARIANTS, BfclCase, read_cases, split_of
from egpo.environments.bfcl.interpreter import bfcl_python, data_folder
from egpo.errors import InputError, nearest, notify_once
from egpo.rewards.verdict import Verdict
from egpo.tasks.episodes import TURN_BREAK, judge_episode
from egpo.tasks.protocol import Problem


class BfclMultiTurnTask:
    """A task of BFCL's multi-turn cases. `variants` of the 200 scenarios: base, miss_func, miss_param, long_context.

    `train` and `test` limit the number of cases of each split. BFCL's Python environment is created when it is missing.
    """

    data_source: ClassVar[str] = "bfcl_multi_turn"
    ability: ClassVar[str] = "function_calling"
    environment: ClassVar[str] = "bfcl_multi_turn"

    def __init__(
        self, *, variants: Sequence[str] = VARIANTS, train: int | None = None, test: int | None = None
    ) -> None:
        where = "task bfcl_multi_turn"
        if isinstance(variants, str) or not variants:
            raise InputError("`variants` is not a list", where=where, fix=f"choose from {', '.join(VARIANTS)}")
        for variant in variants:
            if variant not in VARIANTS:
                raise InputError(f"unknown variant `{variant}`", where=where, fix=nearest(str(variant), VARIANTS))
        for split, limit in (("train", train), ("test", test)):
            if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
                raise InputError(f"{split}={limit!r} is not allowed", where=where, fix="give a whole number above 0")
        self._variants, self._limits = tuple(variants), {"train": train, "test": test}
        self._cases: dict[str, BfclCase] = {}
        self._host: EnvironmentHost | None = None

    def problems(self, split: str) -> Sequence[Problem]:
        if split not in SPLITS:
            raise InputError(f"unknown split `{split}`", where="task bfcl_multi_turn", fix=nearest(split, SPLITS))
        chosen = [case for case in self._read().values() if split_of(case.id) == split]
        return [self._problem(case) for case in chosen[: self._limits[split]]]

    def prompt(self, problem: Problem) -> list[Message]:
        return [dict(message) for message in problem.messages]

    def gold_turns(self, problem: Problem) -> list[str]:
        """Return the assistant's texts that make the calls of the ground truth."""
        return self._read()[problem.key].gold_turns()

    def gold(self, problem: Problem) -> str:
        return TURN_BREAK.join(self.gold_turns(problem))

    def judge(self, problem: Problem, text: str) -> Verdict:
        """Play an episode that is written as one text, and return its verdict."""
        self._host = self._host or EnvironmentHost(self.environment, num_workers=1)
        return judge_episode(self._host, problem, text)

    def _read(self) -> dict[str, BfclCase]:
        if not self._cases:
            python = bfcl_python(say=notify_once)
            self._cases = {case.id: case for case in read_cases(data_folder(python), self._variants)}
        return self._cases

    def _problem(self, case: BfclCase) -> Problem:
        return Problem(case.id, case.questions[0], case.id, self.ability, {"case": case.id})
