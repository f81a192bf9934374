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
from egpo.verl.rows import Responses, Rows, TokenTables
from egpo.verl.settings import ESTIMATORS, VERLS_OWN, Settings


@dataclass(frozen=True, eq=False)
class EstimatorInputs:
    """Inputs of the advantage estimators beyond verl's arguments. The estimators add their metrics to `metrics`."""

    settings: Settings
    responses: Responses
    rows: Rows
    measures: Measures
    tokens: TokenTables | None = None
    """Entropy and mask of every row of the batch, for estimators of level "token" alone."""
    drawn_B: Tensor | None = None
    """Rewards that were drawn at random, in place of those of the verdicts; None: they were not."""
    metrics: Metrics = field(default_factory=dict)

    def rewards(self, reward_B: Tensor) -> Tensor:
        """Return what the estimator gets: verl's reward of each response, with the drawn one in place of the score.

        A KL or overlong penalty that is part of verl's reward stays.
        """
        if self.drawn_B is None:
            return reward_B
        drawn_B = reward_B - self.rows.verdict_B.to(reward_B.dtype) + self.drawn_B.to(reward_B.dtype)
        spread = {"mean": drawn_B.mean(), "max": drawn_B.max(), "min": drawn_B.min()}
        self.metrics.update({f"critic/rewards/{name}": float(value) for name, value in spread.items()})
        self.metrics["reward/random_frac"] = 1.0
        return drawn_B

    def advantages(self, estimator: str, reward_B: Tensor, **arguments: Any) -> Tensor:
        """Return one advantage per response.

        It is 0 for a response that could not be judged, which is left out of its group.
        """
        kept_B = self.rows.comparable_B
        advantage_B = torch.zeros_like(reward_B)
        if bool(kept_B.any()):
            signals = self._signals(reward_B, kept_B)
            advantage_B[kept_B] = estimator_named(estimator)(signals, **arguments, metrics=self.metrics)
        return advantage_B

    def token_advantages(self, estimator: str, reward_B: Tensor, **arguments: Any) -> Tensor:
        """Return one advantage per token of each row of the batch; 0 as in `advantages`, outside the mask, and padding.

        If a session has several outputs, the estimator gets their tokens one after the other, as one response.
        """
        tokens, responses, kept_B = self._tokens(), self.responses, self.rows.comparable_B
        entropy_BT, mask_BT = responses.joined(tokens.entropy_NT), responses.joined(tokens.mask_NT)
        advantage_BT = torch.zeros_like(entropy_BT)
        if bool(kept_B.any()):
            signals, tables = self._signals(reward_B, kept_B), (entropy_BT[kept_B], mask_BT[kept_B])
            found_BT = estimator_named(estimator)(signals, *tables, **arguments, metrics=self.metrics)
            advantage_BT[kept_B] = found_BT.to(entropy_BT.dtype) * tables[1]
        return responses.apart(advantage_BT)

    def _tokens(self) -> TokenTables:
        if self.tokens is None:
            raise InputError(
                f"the estimator `{self.settings.estimator}` was called without the entropy of each token",
                where="algorithm.adv_estimator",
                fix=TRAINER_FIX,
            )
        return self.tokens

    def _signals(self, reward_B: Tensor, kept_B: Tensor) -> Signals:
        segment, correct_B = self.settings.segment, self.rows.correct_B
        if self.drawn_B is not None:
            correct_B = self.drawn_B > 0  # an estimator that saw the real verdicts would be no control
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


TRAINER_FIX = "run verl's main_ppo with trainer.use_v1=True and trainer.v1.trainer_mode=sync"


def _as_verl_calls_it(name: str) -> Callable[..., tuple[Tensor, Tensor]]:
    def advantage_and_returns(token_level_rewards: Tensor, response_mask: Tensor, **_: Any) -> tuple[Tensor, Tensor]:
        inputs = _inputs.get()
        if inputs is None:
            raise InputError(
                f"the estimator `{name}` was called without the batch's entropy",
                where="algorithm.adv_estimator",
                fix=TRAINER_FIX,
            )
        reward_B = inputs.rewards(token_level_rewards.sum(-1)[inputs.responses.row_B])
        if estimator_named(name).level == "token":
            advantage_NT = inputs.token_advantages(name, reward_B, **inputs.settings.arguments) * response_mask
        else:
            advantage_B = inputs.advantages(name, reward_B, **inputs.settings.arguments)
            advantage_NT = over_tokens(inputs.responses.to_rows(advantage_B), response_mask)
        return advantage_NT, advantage_NT

    advantage_and_returns.__name__ = name
    return advantage_and_returns


OF_JUDGED = "{}_of_judged_responses"
"""The name in verl of our form of an estimator that verl has itself, such as `grpo`. It is used in steps in which a
response could not be judged: verl's own counts its score, 0, as that of a wrong answer."""


def estimator_for(inputs: EstimatorInputs) -> str:
    """Return the estimator of a step by its name in verl: that of the configuration, with three exceptions.

    Our form of verl's own estimators computes steps with a response that could not be judged, and those with rewards
    drawn at random. It also computes steps in which a session has several outputs, unless the estimator is `grpo`: verl
    would count each as a response.
    """
    chosen = inputs.settings.estimator
    if chosen not in VERLS_OWN:
        return chosen
    counted_apart = chosen != "grpo" and bool((inputs.responses.output_N > 0).any())
    differs = counted_apart or inputs.drawn_B is not None or bool(inputs.rows.failed_B.any())
    return OF_JUDGED.format(chosen) if differs else chosen


def register_estimators(core_algos: ModuleType, names: Iterable[str] = ESTIMATORS) -> None:
    """Register estimators with verl by name. verl's own estimators are not changed."""
    for name in names:
        core_algos.register_adv_est(name)(_as_verl_calls_it(name))


def register_forms_of_judged(core_algos: ModuleType) -> None:
    """Register our forms of the estimators that verl has itself, beside verl's own."""
    for name in VERLS_OWN:
        core_algos.register_adv_est(OF_JUDGED.format(name))(_as_verl_calls_it(name))
