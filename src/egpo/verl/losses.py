"""Loss forms in verl: which of ours verl has itself, and the others in the form in which verl calls them.

`VERLS_LOSSES` names the loss forms that verl has. Any other goes to verl as a loss mode with a colon, which the plug-in
registers when an actor asks for it: `module:name` for one outside the package, `egpo:name` for a row of
`egpo.losses.LOSSES` that verl lacks, each with its settings as JSON after a `?`. verl gives a loss form the tokens of
one micro-batch. So one that chooses tokens of a whole mini-batch (`mark`) is refused before the first step.

Tensor suffixes: B rows of a micro-batch, T response tokens of a row, M all response tokens, row after row. torch and
verl are imported inside the functions, so that recipes can be translated without them.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from egpo.errors import EgpoError, Fault, InputError
from egpo.losses import LOSSES, Clip, LossForm, LossTokens, TokenLoss, loss_named
from egpo.sections import checked

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class VerlLoss:
    """A loss form that verl has: its `policy_loss.loss_mode`, and its keys below `policy_loss` by our settings.

    `lacks`: settings of ours that verl's form does not have, with the reason why it works without them.
    """

    mode: str
    keys: Mapping[str, str] = field(default_factory=dict)
    lacks: Mapping[str, str] = field(default_factory=dict)


VERLS_LOSSES = {
    "clipped": VerlLoss("vanilla"),
    "gspo": VerlLoss("gspo"),
    "clip_cov": VerlLoss("clip_cov", {"ratio": "clip_cov_ratio", "lower": "clip_cov_lb", "upper": "clip_cov_ub"}),
    "kl_cov": VerlLoss(
        "kl_cov",
        {"ratio": "kl_cov_ratio", "weight": "ppo_kl_coef"},
        {"tolerance": "verl computes the old log-probabilities itself, so that they have no rounding errors"},
    ),
    "cispo": VerlLoss("cispo"),
}
"""Loss forms of a recipe (`update.loss`) that verl has itself. Others are computed by the plug-in."""

OURS = "egpo"
"""The module in a loss mode that means our own table: `egpo:name`."""
WHERE = "actor_rollout_ref.actor.policy_loss.loss_mode"
NO_DUAL_CLIP = 1e9
"""A dual clip without effect. verl always clips the loss of negative advantages, but first cuts ratios at exp(20) =
4.9e8, which is below this value."""


def loss_mode(loss: str, settings: Mapping[str, Any]) -> str:
    """Return verl's loss mode for a loss form of a recipe. Settings are part of it only if the plug-in computes it.

    >>> loss_mode("clipped", {}), loss_mode("mine:loss", {"beta": 0.1})
    ('vanilla', 'mine:loss?{"beta": 0.1}')
    """
    if loss in VERLS_LOSSES:
        return VERLS_LOSSES[loss].mode
    name = loss if ":" in loss else f"{OURS}:{loss}"
    return f"{name}?{json.dumps(dict(settings), sort_keys=True)}" if settings else name


def recipe_loss(mode: str) -> tuple[str, dict[str, Any]] | None:
    """Return the inverse of `loss_mode` for the plug-in's modes: the loss form of a recipe and its settings.

    None if the mode is not one of the plug-in's. Raise InputError if the settings cannot be read.
    """
    name, _, text = mode.partition("?")
    if ":" not in name:
        return None
    try:
        settings = json.loads(text or "{}")
    except ValueError as error:
        raise InputError(f"the settings `{text}` are not JSON", where=WHERE, fix="write `module:name?{...}`") from error
    if not isinstance(settings, dict):
        raise InputError(f"the settings `{text}` are not an object", where=WHERE, fix="write `module:name?{...}`")
    module, _, attribute = name.partition(":")
    return (attribute if module == OURS and attribute in LOSSES else name), settings


def plugin_loss(mode: str) -> tuple[LossForm, dict[str, Any]]:
    """Return the loss form of one of the plug-in's modes, and its checked settings. Raise InputError if it is wrong."""
    found = recipe_loss(mode)
    if found is None:
        raise InputError(f"`{mode}` is not a loss form `module:name`", where=WHERE, fix="write `module:name`")
    name, settings = found
    form = loss_named(name)
    if fault := choosing_fault(name, form):
        raise InputError(fault.what, where=WHERE, fix=fault.fix)
    return form, settings if form.settings is None else checked(form.settings, WHERE, **settings).model_dump()


def choosing_fault(name: str, form: LossForm) -> Fault | None:
    """Return a fault if the loss form chooses among the tokens of a mini-batch, and verl does not have it itself."""
    if form.mark is None or name in VERLS_LOSSES:
        return None
    what = f"`{name}` chooses among the tokens of a mini-batch, and verl gives a loss one micro-batch without entropy"
    return Fault(what, "update.loss", "train with engine=local, or choose another loss form")


def loss_faults(config: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield a fault if the configuration of verl (plain values) names a loss form that the plug-in cannot compute."""
    actor = (config.get("actor_rollout_ref") or {}).get("actor") or {}
    mode = str((actor.get("policy_loss") or {}).get("loss_mode", ""))
    if ":" in mode:
        try:
            plugin_loss(mode)
        except EgpoError as error:
            yield from error.faults


def accept_plugin_losses(core_algos: Any) -> None:
    """Make verl's `get_policy_loss_fn` register the plug-in's loss modes when they are first asked for.

    An actor asks by the name in its configuration, which this process does not know when verl is imported.
    """
    find = core_algos.get_policy_loss_fn

    @functools.wraps(find)
    def find_or_register(name: Any) -> Any:
        if isinstance(name, str) and ":" in name and name not in core_algos.POLICY_LOSS_REGISTRY:
            core_algos.register_policy_loss(name)(as_verl_calls_it(name))
        return find(name)

    core_algos.get_policy_loss_fn = find_or_register


def as_verl_calls_it(mode: str) -> Callable[..., tuple[Tensor, dict[str, float]]]:
    """Return the loss form of a mode as a policy loss of verl, with the metrics of verl's own."""
    form, settings = plugin_loss(mode)

    def policy_loss(
        old_log_prob: Tensor,
        log_prob: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        loss_agg_mode: str = "token-mean",
        config: Any = None,
        rollout_is_weights: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, float]]:
        from verl.trainer.ppo.core_algos import agg_loss

        mask_BT = response_mask.bool()
        tokens = LossTokens(
            logp_M=log_prob[mask_BT],
            old_logp_M=old_log_prob[mask_BT],
            advantage_M=advantages[mask_BT],
            row_M=mask_BT.nonzero()[:, 0],
        )
        found = form(tokens, _clip(config), **settings)
        # A micro-batch without response tokens still needs a gradient, of 0.
        loss_BT = (log_prob * 0.0).masked_scatter(mask_BT, found.loss_M.to(log_prob.dtype))
        if rollout_is_weights is not None:
            loss_BT = loss_BT * rollout_is_weights
        loss = agg_loss(
            loss_mat=loss_BT, loss_mask=response_mask, loss_agg_mode=loss_agg_mode, **config.global_batch_info
        )
        return loss, _metrics(tokens, found)

    policy_loss.__name__ = mode
    return policy_loss


def _clip(actor: Any) -> Clip:
    """Return the clip of the ratio in verl's configuration of the actor."""
    low = actor.clip_ratio if actor.clip_ratio_low is None else actor.clip_ratio_low
    high = actor.clip_ratio if actor.clip_ratio_high is None else actor.clip_ratio_high
    dual = actor.get("clip_ratio_c", NO_DUAL_CLIP)
    return Clip(low, high, None if dual is None or dual >= NO_DUAL_CLIP else dual)


def _metrics(tokens: LossTokens, found: TokenLoss) -> dict[str, float]:
    def mean(value_M: Tensor) -> float:
        return float(value_M.detach().float().mean()) if len(value_M) else 0.0

    return {
        "actor/pg_clipfrac": mean(found.clipped_M),
        "actor/ppo_kl": mean(-tokens.log_ratio_M()),
        "actor/pg_clipfrac_lower": mean(found.capped_M),
    }
