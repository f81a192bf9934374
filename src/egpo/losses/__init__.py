"""Loss forms: log-probabilities and advantages of response tokens in, the loss of each token out.

    tokens.py     LossTokens, Clip, TokenLoss: what a loss form gets and returns; MiniBatchTokens, what it chooses from
    clipped.py    PPO's clipped surrogate, the loss of GRPO and DAPO
    clip_cov.py   no gradient for random tokens of a large covariance of advantage and log-probability
    kl_cov.py     a KL term for the tokens of the largest covariance, and no clip
    gspo.py       one ratio per response
    cispo.py      the clipped ratio as a weight

To add a loss form, write its file (settings class, if it has settings, and function) and add a row to LOSSES. A loss
form outside the package is named `module:name`, where the name is a `LossForm` or a plain function
`f(tokens, clip, **settings) -> loss_M`. Importing this package does not import torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from egpo.errors import InputError, nearest
from egpo.losses.cispo import cispo
from egpo.losses.clip_cov import ClipCovSettings, clip_cov, draw
from egpo.losses.clipped import clipped
from egpo.losses.gspo import gspo
from egpo.losses.kl_cov import KlCovSettings, kl_cov, largest
from egpo.losses.tokens import Clip, LossTokens, MiniBatchTokens, TokenLoss
from egpo.sections import Section
from egpo.user_code import user_row

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["LOSSES", "Clip", "LossForm", "LossTokens", "MiniBatchTokens", "TokenLoss", "loss_named"]

FORM = "give an egpo.losses.LossForm, or a function f(tokens, clip, **settings) that returns loss_M"


@dataclass(frozen=True)
class LossForm:
    """A loss form. Calling it calls its function: `LOSSES["gspo"](tokens, Clip(3e-4, 4e-4))`."""

    function: Callable[..., TokenLoss]
    """The function that computes the loss: `f(tokens, clip, **settings) -> TokenLoss`."""
    settings: type[Section] | None = None
    """The class of the loss form's settings, which also checks their values. None: it has none, or they are not
    checked."""
    mark: Callable[..., Tensor] | None = None
    """Chooses tokens of a whole mini-batch before it is cut into micro-batches, so that the cuts do not change the
    choice: `mark(tokens: MiniBatchTokens, **settings) -> marked_K`. None: nothing is chosen."""

    def __call__(self, tokens: LossTokens, clip: Clip, **settings: Any) -> TokenLoss:
        return self.function(tokens, clip, **settings)


LOSSES: dict[str, LossForm] = {
    "clipped": LossForm(clipped),
    "clip_cov": LossForm(clip_cov, ClipCovSettings, mark=draw),
    "kl_cov": LossForm(kl_cov, KlCovSettings, mark=largest),
    "gspo": LossForm(gspo),
    "cispo": LossForm(cispo),
}


def loss_named(name: str) -> LossForm:
    """Return the loss form of that name, or of that `module:name`. Raise InputError with the nearest name otherwise."""
    if ":" in name:
        return _from_outside(name)
    if name not in LOSSES:
        raise InputError(f"unknown loss form `{name}`", fix=nearest(name, LOSSES))
    return LOSSES[name]


def _from_outside(name: str) -> LossForm:
    """Import the loss form `module:name`. A plain function returns the loss of each token alone."""
    found = user_row(name, "loss form", FORM)
    if isinstance(found, LossForm):
        return found

    def function(tokens: LossTokens, clip: Clip, **settings: Any) -> TokenLoss:
        import torch

        loss_M = found(tokens, clip, **settings)
        if isinstance(loss_M, TokenLoss):
            return loss_M
        if not isinstance(loss_M, torch.Tensor) or loss_M.shape != tokens.logp_M.shape:
            shape = tuple(getattr(loss_M, "shape", ()))
            what = f"it returned {type(loss_M).__name__} of shape {shape}, not one loss per token"
            raise InputError(what, where=f"loss form {name}", fix=FORM)
        nothing_M = torch.zeros_like(loss_M, dtype=torch.bool)
        return TokenLoss(loss_M, nothing_M, nothing_M)

    return LossForm(function)
