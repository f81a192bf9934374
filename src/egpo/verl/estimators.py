"""Our estimators in the form in which verl calls them.

In the names of tensors, N is the number of rows of the batch, B of responses, T of tokens.

verl passes an estimator rewards, mask and uids, but no entropy. The trainer therefore provides `EstimatorInputs` in a
context variable around the call (`with_inputs`).
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from egpo.advantages import Signals, estimator_named, over_tokens
from egpo.advantages.signals import Metrics
from egpo.errors import InputError
from egpo.verl.measures import Measures
from egpo.verl.rows import Responses, Rows
from egpo.verl.settings import ESTIMATORS, Settings


@dataclass(frozen=True, eq=False)
class EstimatorInputs:
    """Inputs of the advantage estimators beyond verl's arguments. The estimators add their metrics to `metrics`."""

    settings: Settings
    responses: Responses
    rows: Rows
    measures: Measures
    metrics: Metrics = field(default_factory=dict)

    def advantages(self, estimator: str, reward_B: Tensor, **arguments: Any) -> Tensor:
        """Return the advantages; 0 for a response that could not be judged, which is left out of its group."""
        kept_B = self.rows.comparable_B
        advantage_B = torch.zeros_like(reward_B)
        if bool(kept_B.any()):
            signals = self._signals(reward_B, kept_B)
            advantage_B[kept_B] = estimator_named(estimator)(signals, **arguments, metrics=self.metrics)
        return advantage_B

    def _signals(self, reward_B: Tensor, kept_B: Tensor) -> Signals:
        segment, correct_B = self.settings.segment, self.rows.correct_B
        return Signals(
            reward_B=reward_B[kept_B],
            group_B=self.rows.group_B[kept_B],
            entropy_B=None if segment is None else self.measures.entropy[segment][kept_B],
            correct_B=None if correct_B is None else correct_B[kept_B],
            nll_B=None if segment is None else self.measures.nll[segment][kept_B],
        )


_inputs: ContextVar[EstimatorInputs | None] = ContextVar("egpo_estimator_inputs", default=None)


@contextmanager
def with_inputs(inputs: EstimatorInputs) -> Iterator[EstimatorInputs]:
    """Provide our estimators with `inputs` for the duration of the block."""
    token = _inputs.set(inputs)
    try:
        yield inputs
    finally:
        _inputs.reset(token)


def _as_verl_calls_it(name: str) -> Callable[..., tuple[Tensor, Tensor]]:
    def advantage_and_returns(token_level_rewards: Tensor, response_mask: Tensor, **_: Any) -> tuple[Tensor, Tensor]:
        inputs = _inputs.get()
        if inputs is None:
            raise InputError(
                f"the estimator `{name}` was called without the batch's entropy",
                where="algorithm.adv_estimator",
                fix="run verl's main_ppo with trainer.use_v1=True and trainer.v1.trainer_mode=sync",
            )
        reward_B = token_level_rewards.sum(-1)[inputs.responses.row_B]
        advantage_B = inputs.advantages(name, reward_B, **inputs.settings.arguments)
        advantage_NT = over_tokens(inputs.responses.to_rows(advantage_B), response_mask)
        return advantage_NT, advantage_NT

    advantage_and_returns.__name__ = name
    return advantage_and_returns


GRPO_OF_JUDGED = "grpo_of_judged_responses"
"""The name of our `grpo` in verl. It is used in steps in which a response could not be judged: verl's own counts its
score, 0, as that of a wrong answer."""


def estimator_for(inputs: EstimatorInputs) -> str:
    """Return the estimator of a step by its name in verl: that of the configuration, with one exception."""
    chosen = inputs.settings.estimator
    return GRPO_OF_JUDGED if chosen == "grpo" and bool(inputs.rows.failed_B.any()) else chosen


def register_estimators(core_algos: ModuleType, names: Iterable[str] = ESTIMATORS) -> None:
    """Register estimators with verl by name. verl's own estimators are not changed."""
    for name in names:
        core_algos.register_adv_est(name)(_as_verl_calls_it(name))


def register_grpo_of_judged(core_algos: ModuleType) -> None:
    core_algos.register_adv_est(GRPO_OF_JUDGED)(_as_verl_calls_it("grpo"))
