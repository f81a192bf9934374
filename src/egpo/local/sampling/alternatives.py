"""Record the likeliest tokens, with their probabilities, at the positions of highest entropy of each response.

They are for display: nothing that is sampled or trained depends on them. Each row has a fixed number of places; a
position of higher entropy replaces the one of lowest entropy. So memory does not grow with the length of responses.

R rows, V vocabulary, B rows of the tables, S places per row, K tokens.
"""

from dataclasses import replace

import torch
from torch import Tensor

from egpo.local.rollouts import Alternatives
from egpo.local.sampling.choose import Sampling, truncate

LEAST_ENTROPY = 0.5
"""In nats. Below it, one token holds nearly all of the probability."""


def record_alternatives(
    tables: Alternatives, row_R: Tensor, position: int, logits_RV: Tensor, entropy_R: Tensor, sampling: Sampling
) -> None:
    """Record the most probable tokens at one position of each row whose entropy is at least `LEAST_ENTROPY`.

    Only these rows are processed. Selecting them makes the host wait for a GPU, so captured CUDA graphs do not call it.
    """
    high = (entropy_R >= LEAST_ENTROPY).nonzero()[:, 0]
    if not len(high):
        return
    row_R, entropy_R = row_R[high], entropy_R[high]
    least_R, place_R = tables.entropy_BS[row_R].min(dim=1)
    better = (entropy_R > least_R).nonzero()[:, 0]
    token_RK, probability_RK = likeliest(logits_RV[high[better]], sampling, tables.token_BSK.shape[2])
    tables.write((row_R[better], place_R[better]), position, entropy_R[better], token_RK, probability_RK)


def record_in_graph(
    tables: Alternatives,
    row_R: Tensor,
    position_R: Tensor,
    live_R: Tensor,
    logits_RV: Tensor,
    entropy_R: Tensor,
    sampling: Sampling,
) -> None:
    """Do the same with fixed shapes and without synchronisation, as a captured graph needs it.

    Rows with nothing to record write to the last row of the tables, which belongs to no response. `logits_RV` are
    truncated already.
    """
    row_R = row_R.long()
    least_R, place_R = tables.entropy_BS[row_R].min(dim=1)
    records_R = (entropy_R > least_R) & (entropy_R >= LEAST_ENTROPY) & (live_R != 0)
    at = torch.where(records_R, row_R, len(tables.entropy_BS) - 1), place_R
    plain = replace(sampling, top_p=1.0, top_k=0, min_p=0.0)
    token_RK, probability_RK = likeliest(logits_RV, plain, tables.token_BSK.shape[2])
    tables.write(at, position_R.int(), entropy_R, token_RK, probability_RK)


def likeliest(logits_RV: Tensor, sampling: Sampling, num_tokens: int) -> tuple[Tensor, Tensor]:
    """Return the likeliest tokens and their probabilities in the distribution that is sampled from, both (R, K).

    A vocabulary of fewer than `num_tokens` tokens gives all of them. A greedy choice has the distribution at
    temperature 1.
    """
    probability_RV = torch.softmax(logits_RV.float() / (sampling.temperature or 1.0), dim=-1)
    if sampling.truncates and sampling.temperature > 0:
        probability_RV = truncate(probability_RV, sampling)
    found = probability_RV.topk(min(num_tokens, probability_RV.shape[1]))
    return found.indices, found.values
