"""Advantage estimators: rewards and measurements of a batch in, one advantage per response or per token out.

    signals.py           Signals, the inputs of an estimator; Groups, sums within groups
    grpo.py              the reward compared with the group
    rloo.py              the reward compared with the other responses
    qae.py               the reward compared with a quantile of the group
    pass_at_k.py         the best of k responses, compared over all subsets of the group
    canon.py             the reward compared with the halves of the group, by entropy
    egpo.py              GRPO's advantage plus a clipped bonus for the entropy of the thinking
    egpo_calibrated.py   GRPO's advantage times the confidence relative to the group
    edge.py              the same without a clip
    grpo_s.py            rewards of responses, reshaped by entropy
    gtpo.py              rewards of tokens, reshaped by entropy
    token_entropy.py     GRPO's advantage plus a clipped bonus for the entropy of each token
    high_entropy.py      GRPO's advantage at the tokens of high entropy alone

To add an estimator, write its file (settings class and function, see `egpo.py`) and add a row to ESTIMATORS. Recipes,
verl's keys, the translation to verl and the documentation read this table. An estimator outside the package is named
`module:name`, where the name is an `Estimator` or a plain function: `f(signals, **settings) -> advantage_B`, or
`f(signals, entropy_BT, mask_BT, **settings) -> advantage_BT` for one advantage per token. Importing this package does
not import torch.

>>> signals = Signals(reward_B=[1.0, 0.0], group_B=["a", "a"])
>>> ESTIMATORS["grpo"](signals)
tensor([ 0.7071, -0.7071])
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from egpo.advantages.canon import CanonSettings, canon
from egpo.advantages.edge import EdgeSettings, edge
from egpo.advantages.egpo import EgpoSettings, egpo
from egpo.advantages.egpo_calibrated import EgpoCalibratedSettings, egpo_calibrated
from egpo.advantages.grpo import GrpoSettings, grpo
from egpo.advantages.grpo_s import GrpoSSettings, GtpoSettings, grpo_s
from egpo.advantages.gtpo import gtpo
from egpo.advantages.high_entropy import HighEntropySettings, high_entropy
from egpo.advantages.pass_at_k import PassAtKSettings, pass_at_k
from egpo.advantages.qae import QaeSettings, qae
from egpo.advantages.rloo import RlooSettings, rloo
from egpo.advantages.signals import Metrics, Signals
from egpo.advantages.token_entropy import TokenEntropySettings, token_entropy
from egpo.errors import Fault, InputError, nearest
from egpo.sections import Section, Segment
from egpo.user_code import user_row

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "ESTIMATORS",
    "REFUSED",
    "Estimator",
    "Signals",
    "canon",
    "edge",
    "egpo",
    "egpo_calibrated",
    "estimator_named",
    "explain",
    "grpo",
    "grpo_s",
    "gtpo",
    "high_entropy",
    "over_tokens",
    "pass_at_k",
    "qae",
    "rloo",
    "token_entropy",
]

FORM = (
    "give an egpo.advantages.Estimator, or a function f(signals, **settings) that returns advantage_B, "
    "or f(signals, entropy_BT, mask_BT, **settings) that returns advantage_BT"
)


@dataclass(frozen=True)
class Estimator:
    """An advantage estimator. Calling it calls its function: `ESTIMATORS["egpo"](signals, lam=0.4)`."""

    function: Callable[..., Tensor]
    """The function that computes the advantages: `f(signals, *, normalize, metrics, **settings) -> advantage_B`; with
    level "token", `f(signals, entropy_BT, mask_BT, *, normalize, metrics, **settings) -> advantage_BT`."""
    settings: type[Section] | None = None
    """The class of the estimator's settings, which also checks their values.

    If it has a field `entropy_mode`, that setting chooses the segment whose entropy is used. None: the settings are not
    checked.
    """
    segment: Segment | None = None
    """The segment whose entropy the estimator uses by default (see `entropy_mode`). None: it uses no entropy."""
    level: Literal["response", "token"] = "response"
    """The level of the advantages: one per response, or one per token. Those of tokens are 0 outside the mask."""

    def __call__(self, signals: Signals, *tables: Tensor, **settings: Any) -> Tensor:
        """Return the advantages. `tables` are `entropy_BT` and `mask_BT`, for estimators of level "token" alone."""
        return self.function(signals, *tables, **settings)


ESTIMATORS: dict[str, Estimator] = {
    "grpo": Estimator(grpo, GrpoSettings),
    "egpo": Estimator(egpo, EgpoSettings, "thinking"),
    "egpo_calibrated": Estimator(egpo_calibrated, EgpoCalibratedSettings, "answer"),
    "edge": Estimator(edge, EdgeSettings, "response"),
    "canon": Estimator(canon, CanonSettings, "response"),
    "grpo_s": Estimator(grpo_s, GrpoSSettings, "response"),
    "gtpo": Estimator(gtpo, GtpoSettings, level="token"),
    "token_entropy": Estimator(token_entropy, TokenEntropySettings, level="token"),
    "high_entropy": Estimator(high_entropy, HighEntropySettings, level="token"),
    "qae": Estimator(qae, QaeSettings),
    "pass_at_k": Estimator(pass_at_k, PassAtKSettings),
    "rloo": Estimator(rloo, RlooSettings),
}


_PER_TURN = Fault(
    "comparing the rewards of each turn within the group is biased where the policy decides when an episode ends",
    fix="use grpo, one advantage for the whole episode (docs/environments.md, credit)",
)
REFUSED = dict.fromkeys(("mt_grpo", "turn_grpo", "per_turn"), _PER_TURN)
"""Published estimators that are not offered, each with the reason."""


def estimator_named(name: str) -> Estimator:
    """Return the estimator of that name, or of that `module:name`. Raise InputError with the nearest name otherwise."""
    if ":" in name:
        return _from_outside(name)
    if name in REFUSED:
        raise InputError(REFUSED[name].what, where=f"estimator `{name}`", fix=REFUSED[name].fix)
    if name not in ESTIMATORS:
        raise InputError(f"unknown estimator `{name}`", fix=nearest(name, ESTIMATORS))
    return ESTIMATORS[name]


def explain(name: str, signals: Signals, *tables: Tensor, **settings: Any) -> Metrics:
    """Return the metrics that an estimator reports for this batch. A metric without data is left out.

    `tables` are `entropy_BT` and `mask_BT`, for estimators of level "token" alone.
    """
    metrics: Metrics = {}
    estimator_named(name)(signals, *tables, **settings, metrics=metrics)
    return metrics


def over_tokens(advantage_B: Tensor, mask_BT: Tensor) -> Tensor:
    """Return the response's advantage at each of its tokens, and 0 outside the mask."""
    return advantage_B.unsqueeze(-1) * mask_BT


def _from_outside(name: str) -> Estimator:
    """Import the estimator `module:name`. A plain function gets the entropy of the whole response."""
    found = user_row(name, "estimator", FORM)
    if isinstance(found, Estimator):
        return found
    accepted = inspect.signature(found).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted.values())

    def function(signals: Signals, *tables: Tensor, **settings: Any) -> Tensor:
        ours = {key for key in ("normalize", "metrics") if key not in accepted and not takes_any}
        result: Tensor = found(signals, *tables, **{key: value for key, value in settings.items() if key not in ours})
        return result

    per_token = {"entropy_BT", "mask_BT"} <= set(accepted)
    return Estimator(function, segment="response", level="token" if per_token else "response")
