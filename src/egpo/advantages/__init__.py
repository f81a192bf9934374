"""Advantage estimators: tensors in, tensors out. One file a formula; `ESTIMATORS` names them.

>>> signals = Signals(reward_B=[1.0, 0.0], group_B=["a", "a"])
>>> ESTIMATORS["grpo"](signals)
tensor([ 0.7071, -0.7071])
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from egpo.advantages.egpo import egpo
from egpo.advantages.egpo_calibrated import egpo_calibrated
from egpo.advantages.grpo import grpo
from egpo.advantages.signals import Metrics, Signals
from egpo.errors import InputError, nearest

__all__ = ["ESTIMATORS", "Signals", "egpo", "egpo_calibrated", "estimator_named", "explain", "grpo", "over_tokens"]

ESTIMATORS: dict[str, Callable[..., Tensor]] = {
    "grpo": grpo,
    "egpo": egpo,
    "egpo_calibrated": egpo_calibrated,
}


def estimator_named(name: str) -> Callable[..., Tensor]:
    """The estimator, or an error that names the nearest one."""
    if name not in ESTIMATORS:
        raise InputError(f"unknown estimator `{name}`", fix=nearest(name, ESTIMATORS))
    return ESTIMATORS[name]


def explain(name: str, signals: Signals, **settings: Any) -> Metrics:
    """What the estimator does to this batch. A figure without data (no row measured, say) is left out."""
    metrics: Metrics = {}
    estimator_named(name)(signals, **settings, metrics=metrics)
    return metrics


def over_tokens(advantage_B: Tensor, mask_BT: Tensor) -> Tensor:
    """The advantage of a response, at each of its tokens, and 0 outside the mask. Returns are the same tensor."""
    return advantage_B.unsqueeze(-1) * mask_BT
