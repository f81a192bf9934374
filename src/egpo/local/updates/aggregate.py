"""How the losses of tokens become the loss of a mini-batch, as a weight for every token of a response.

Weights are made for a mini-batch whole, before it is cut into micro-batches: the loss is the sum of weight * loss over
tokens, wherever the cuts fall. B rows.
"""

from typing import Literal

import torch
from torch import Tensor

Aggregation = Literal["token_mean", "sequence_mean", "fixed_length"]


def token_weights(length_B: Tensor, aggregation: Aggregation, horizon: int) -> Tensor:
    """The weight of each token of row b, of L[b] tokens, among R rows that have tokens (float32):

        token_mean      1 / sum(L)          all tokens alike               verl's token-mean
        sequence_mean   1 / (R * L[b])      all responses alike            verl's seq-mean-token-mean
        fixed_length    1 / (R * horizon)   length neither helps nor hurts verl's seq-mean-token-sum-norm, at a fixed
                                                                           loss_scale_factor

    A row without tokens has weight 0 and does not count, as in verl.
    """
    length_B = length_B.double()
    num_rows = (length_B > 0).sum().clamp(min=1)
    if aggregation == "token_mean":
        total_B = length_B.sum().expand_as(length_B)
    elif aggregation == "sequence_mean":
        total_B = num_rows * length_B
    else:
        total_B = (num_rows * horizon).expand_as(length_B)
    return torch.where(length_B > 0, 1 / total_B.clamp(min=1), 0.0).float()
