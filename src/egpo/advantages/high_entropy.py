"""Beyond the 80/20 rule (Wang et al. 2025, arXiv:2506.01939): the gradient of high-entropy tokens alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from egpo.advantages.grpo import grpo
from egpo.advantages.signals import Metrics, Signals
from egpo.sections import Section, checked

if TYPE_CHECKING:
    from torch import Tensor


class HighEntropySettings(Section):
    """The settings of `high_entropy`."""

    rho: Annotated[float, Field(gt=0, le=1)] = 0.2
    """Fraction of the tokens that are trained on, those of the highest entropy. 1 is `grpo`."""


def high_entropy(
    signals: Signals,
    entropy_BT: Tensor,
    mask_BT: Tensor,
    *,
    rho: float = 0.2,
    normalize: bool = True,
    metrics: Metrics | None = None,
) -> Tensor:
    """Return GRPO's advantage at the tokens of the highest entropy in the batch, and 0 at all others.

        A'[i, t] = A[i] * 1[H[i, t] >= q]          q: the (1 - rho) quantile of H over all tokens of the batch

    The loss divides by the number of all tokens, so an advantage of 0 is the same as a loss that leaves the token out.
    q lies between two entropies, as in `torch.quantile`. Tokens of equal entropy are kept or left out together. An
    entropy that is not a number counts as 0. rho = 1 is GRPO to the bit.
    """
    checked(HighEntropySettings, "estimator `high_entropy`", rho=rho)
    base_B = grpo(signals, normalize=normalize, metrics=metrics)
    known_BT = entropy_BT.detach().double().nan_to_num(nan=0.0).clamp(min=0.0)
    mask_BT = mask_BT.bool()
    if not bool(mask_BT.any()):
        return base_B.unsqueeze(1) * mask_BT
    threshold = _quantile(known_BT[mask_BT], 1 - rho)
    kept_BT = mask_BT & (known_BT >= threshold)
    if metrics is not None:
        metrics["egpo/tokens/threshold"] = float(threshold)
        metrics["egpo/tokens/kept_frac"] = float(kept_BT.sum() / mask_BT.sum())
    return base_B.unsqueeze(1) * kept_BT


def _quantile(value_K: Tensor, fraction: float) -> Tensor:
    """Return the quantile, linear between two values. (`torch.quantile` takes no more than 2^24 values.)"""
    place = fraction * (len(value_K) - 1)
    low = min(int(place), len(value_K) - 1)
    at_low, above = (value_K.kthvalue(min(rank, len(value_K))).values for rank in (low + 1, low + 2))
    return at_low.lerp(above, place - low)
