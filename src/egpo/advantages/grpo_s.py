"""GRPO-S (Tan et al. 2025, arXiv:2508.04349): rewards of responses reshaped by their entropy; with GTPO's settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from egpo.advantages.grpo import EPS
from egpo.advantages.signals import Groups, Metrics, Signals, describe, measured, right
from egpo.sections import Positive, Section, Segment, checked

if TYPE_CHECKING:
    from torch import Tensor


class GtpoSettings(Section):
    """The settings of `gtpo`."""

    alpha1: Annotated[float, Field(ge=0)] = 1.0
    """Weight of the reward itself."""
    alpha2: Annotated[float, Field(ge=0)] = 0.1
    """Weight of the share by entropy. With alpha1 + alpha2 = 1 the sum of the rewards is kept."""
    compare: Literal["apart", "group"] = "apart"
    """What a shaped reward is compared with. `apart` (the paper): right ones with the mean and the standard deviation
    of the right ones of the group, wrong ones with those of the wrong ones. `group`: all with those of the group."""
    eps: Positive = 1e-6
    """Added to the entropy of wrong responses, so that its inverse is finite."""


class GrpoSSettings(GtpoSettings):
    """The settings of `grpo_s`: those of `gtpo`, and the segment."""

    entropy_mode: Segment = "response"
    """The segment whose entropy counts: thinking, answer or response."""


def grpo_s(
    signals: Signals,
    *,
    alpha1: float = 1.0,
    alpha2: float = 0.1,
    compare: str = "apart",
    eps: float = 1e-6,
    normalize: bool = True,
    metrics: Metrics | None = None,
) -> Tensor:
    """Return rewards that are shaped by the entropy of the response, compared with those of the same side.

        s[i] = alpha1 * r[i] + alpha2 * H[i] / mean_right(H)                      right responses
        s[j] = -alpha1 - alpha2 * (1 / (H[j] + eps)) / mean_wrong(1 / (H + eps))    wrong responses
        A[i] = (s[i] - mean(s)) / (std(s) + 1e-6)                                 no division if not normalize

    The means run over the right, or the wrong, responses of the group. mean(s) and std(s) run over the same responses
    (compare="apart"), or over the group. A response without entropy has the share 1. Where the compared rewards are
    equal, or there is one, A is exactly 0: under "apart" that is so for the only right response of a group, and for
    alpha2 = 0. Under "apart", groups in which all responses are right, or all wrong, have a gradient.
    """
    where = "estimator `grpo_s`"
    checked(GrpoSSettings, where, alpha1=alpha1, alpha2=alpha2, compare=compare, eps=eps)
    entropy_B = measured(signals, "grpo_s")
    sides = Sides.of(signals, "grpo_s")
    known_B, weight_B = entropy_B.isfinite(), sides.weights(entropy_B, eps)
    share_B = (weight_B / sides.groups.rows(sides.groups.mean_where(known_B, weight_B))).nan_to_num(nan=1.0)
    shaped_B = sides.shaped(share_B, alpha1, alpha2)
    if metrics is not None:
        describe(entropy_B, Groups.of(signals.group_B), "entropy", metrics)
    compared = sides.groups if compare == "apart" else Groups.of(signals.group_B)
    mean_B = compared.rows(compared.sum(shaped_B) / compared.size_P)
    centred_B = (shaped_B - mean_B).masked_fill(compared.rows(compared.equal(shaped_B, shaped_B.dtype)), 0.0)
    if normalize:
        std_P = (compared.sum(centred_B.square()) / (compared.size_P - 1).clamp(min=1)).sqrt()
        centred_B = centred_B / compared.rows(std_P + EPS)
    return centred_B.to(signals.reward_B.dtype)


@dataclass(frozen=True)
class Sides:
    """The right and the wrong responses of each group, as groups of their own."""

    groups: Groups
    right_B: Tensor
    reward_B: Tensor

    @classmethod
    def of(cls, signals: Signals, estimator: str) -> Sides:
        right_B = right(signals, estimator)
        side_B = 2 * Groups.of(signals.group_B).index_B + right_B.long()
        return cls(Groups.of(side_B), right_B, signals.reward_B.double())

    def weights(self, entropy: Tensor, eps: float) -> Tensor:
        """Return H for right rows, and 1 / (H + eps) for wrong ones, of a value per row or per token."""
        # Rounding can leave the entropy of certain tokens below 0.
        certain, right = entropy.clamp(min=0.0), self.right_B.view(-1, *[1] * (entropy.ndim - 1))
        return certain.where(right, 1 / (certain + eps))

    def shaped(self, share: Tensor, alpha1: float, alpha2: float) -> Tensor:
        """Return the shaped rewards, per row or per token: positive for right ones, negative for wrong ones."""
        shape = (-1, *[1] * (share.ndim - 1))
        sign_B = self.right_B.double() * 2 - 1
        own_B = self.reward_B.where(self.right_B, sign_B)
        return alpha1 * own_B.view(shape) + alpha2 * sign_B.view(shape) * share
