"""The optimizer, and the policy update that it makes."""

from typing import Annotated, Literal

from pydantic import Field

from egpo.config.sections.section import Count, CountOrZero, Positive, Section

Decay = Annotated[float, Field(ge=0, lt=1)]


class Optimization(Section):
    """AdamW, as every kind of training here uses it."""

    lr: Positive = 1e-6
    """Learning rate, at its highest."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """After the warm-up: `linear` and `cosine` fall to 0 at the last step."""
    warmup_steps: CountOrZero = 0
    """Steps over which the learning rate rises from 0."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Decoupled, on matrices only."""
    betas: Annotated[tuple[Decay, Decay], Field(strict=False)] = (0.9, 0.999)
    """Of the two moving averages."""
    max_grad_norm: Positive = 1.0
    """Longer gradients are scaled down to this."""
    micro_tokens: Count | None = None
    """Tokens in one forward and backward pass; none: 2,048 on a CPU, whose cache they fit, and 16,384 on a GPU. Halved
    by itself where memory runs out. It changes the result by rounding alone."""


class Update(Optimization):
    clip: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """The policy ratio is clipped below at 1 - clip, and above at 1 + clip unless `clip_high` says otherwise."""
    clip_high: Positive | None = None
    """Upper clip, where it differs from the lower."""
    dual_clip: Annotated[float, Field(gt=1)] | None = None
    """Where the advantage is negative the loss is at most this times its size."""
    kl: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the KL divergence from the starting policy."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """k1 = logp - ref, k2 = (logp - ref)^2 / 2, k3 = exp(ref - logp) - 1 + logp - ref."""
    kl_in: Literal["loss", "reward"] = "loss"
    """`loss`: a term beside the surrogate. `reward`: taken off each response's reward, before the estimator."""
    aggregation: Literal["token_mean", "sequence_mean", "fixed_length"] = "token_mean"
    """`token_mean`: all tokens alike. `sequence_mean`: all responses alike. `fixed_length`: the sum over tokens,
    divided by rollout.max_response_tokens, so that length neither helps nor hurts."""
    epochs: Count = 1
    """Passes over each batch of rollouts."""
    mini_batch: Count | None = None
    """Problems per optimizer step; none: all of the step's."""
