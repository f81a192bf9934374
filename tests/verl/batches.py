"""Random rows of a verl batch, without verl. B responses, T tokens."""

import torch

from egpo.verl.estimators import EstimatorInputs
from egpo.verl.measures import Measures
from egpo.verl.rows import Rows, TokenTables, find_responses
from egpo.verl.settings import read_settings

LENGTH = 6


def keys_of(num_groups, size):
    return [f"{group:04d}-uid_{session}_0" for group in range(num_groups) for session in range(size)]


def rows_for(groups, *, failed=(), seed=0):
    """Entropy and log-probabilities drawn; every third response right."""
    count, generator = len(groups), torch.Generator().manual_seed(seed)
    return Rows(
        groups=tuple(groups),
        prompt_BS=torch.zeros(count, 3, dtype=torch.long),
        prompt_mask_BS=torch.ones(count, 3, dtype=torch.bool),
        response_BT=torch.zeros(count, LENGTH, dtype=torch.long),
        mask_BT=torch.ones(count, LENGTH, dtype=torch.bool),
        entropy_BT=torch.rand(count, LENGTH, generator=generator),
        logp_BT=-torch.rand(count, LENGTH, generator=generator),
        score_B=torch.rand(count, generator=generator),
        sampled_logp_BT=None,
        information=tuple(
            {
                "acc": float(row % 3 == 0),
                "failed": float(row in failed),
                "reason": "correct" if row % 3 == 0 else "wrong",
            }
            for row in range(count)
        ),
    )


def feed_for(keys, tags=None, *, estimator="egpo", failed=(), seed=0, **settings):
    """A feed whose thinking is the whole response."""
    responses = find_responses(keys, tags or [{}] * len(keys))
    rows = rows_for(responses.groups, failed=failed, seed=seed)
    entropy_B, nll_B = rows.entropy_BT.mean(1), -rows.logp_BT.mean(1)
    names = ("thinking", "answer", "response")
    measures = Measures(dict.fromkeys(names, entropy_B), dict.fromkeys(names, nll_B), None)
    algorithm = {"adv_estimator": estimator, "egpo": settings}
    generator = torch.Generator().manual_seed(seed + 1)
    # Padding and earlier outputs of a session have entropies of their own.
    tokens = TokenTables(torch.rand(len(keys), LENGTH, generator=generator), torch.ones(len(keys), LENGTH).bool())
    tokens.entropy_NT[responses.row_B] = rows.entropy_BT
    return EstimatorInputs(read_settings(algorithm), responses, rows, measures, tokens)
