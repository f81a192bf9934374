"""What a loss form gets and returns, token by token.

Tensor suffixes: M response tokens of a micro-batch, row after row; R its rows; K response tokens of a mini-batch.
torch is imported inside the functions, so that recipes can be checked without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

LARGEST_LOG_RATIO = 20.0
"""Bound of the log-ratio of two probabilities, so that sums with exp(ratio) stay finite. A token beyond it has no
gradient, as in verl."""


@dataclass(frozen=True)
class Clip:
    """The clip of the policy ratio: it is at least 1 - low and at most 1 + high. `dual`: see `clipped`; None is off."""

    low: float = 0.2
    high: float = 0.2
    dual: float | None = None


@dataclass(frozen=True, eq=False)
class LossTokens:
    """The response tokens of a micro-batch, row after row. Every response is whole.

    `logp_M` has a gradient; `old_logp_M` is the log-probability under the policy that sampled. `row_M`: the number of
    each token's response, from 0. `marked_M`: the tokens that the loss form chose in the whole mini-batch (`mark`);
    None if it chooses none.
    """

    logp_M: Tensor
    old_logp_M: Tensor
    advantage_M: Tensor
    row_M: Tensor
    marked_M: Tensor | None = None

    def log_ratio_M(self) -> Tensor:
        """Return log(new / old probability), bounded. A token at the bound has no gradient."""
        return (self.logp_M - self.old_logp_M).clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)

    def mean_of_rows(self, value_M: Tensor) -> Tensor:
        """Return the mean of each row's values at each of its tokens (M)."""
        num_rows = int(self.row_M[-1]) + 1 if len(self.row_M) else 0
        sum_R = value_M.new_zeros(num_rows).index_add(0, self.row_M, value_M)
        length_R = value_M.new_zeros(num_rows).index_add(0, self.row_M, value_M.new_ones(len(value_M)))
        return (sum_R / length_R)[self.row_M]


@dataclass(frozen=True, eq=False)
class TokenLoss:
    """The loss of each token. `loss_M` has a gradient; the others are for metrics.

    `clipped_M`: the clip of the ratio was active (actor/pg_clipfrac). `capped_M`: the dual clip was active
    (actor/pg_clipfrac_lower).
    """

    loss_M: Tensor
    clipped_M: Tensor
    capped_M: Tensor


@dataclass(frozen=True, eq=False)
class MiniBatchTokens:
    """The response tokens of a whole mini-batch, from which a loss form chooses some before it is cut.

    `entropy_K`: the entropy of the distribution that each token was sampled from. `uniform_K`: a random number in
    [0, 1) for each token, the same in every repetition of the step.
    """

    old_logp_K: Tensor
    advantage_K: Tensor
    entropy_K: Tensor
    uniform_K: Tensor
