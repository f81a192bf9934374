"""A loss form that is not in the package, as a user would write it: a plain function."""

import torch


def sapo(tokens, clip, *, positive=1.0, negative=1.05):
    """Soft adaptive policy optimization (arXiv:2511.20347): a sigmoid in place of the clip.

        loss = -A * sigmoid(temperature * (q - 1)) * 4 / temperature,   q = exp(logp - old)

    The temperature is `positive` or `negative`, by the sign of A. On-policy the gradient is that of -A logp.
    """
    ratio_M = tokens.log_ratio_M().exp()
    positive_M = torch.full_like(ratio_M, positive)
    temperature_M = torch.where(tokens.advantage_M > 0, positive_M, torch.full_like(ratio_M, negative))
    return -tokens.advantage_M * torch.sigmoid(temperature_M * (ratio_M - 1)) * 4 / temperature_M


def one_number(tokens, clip):
    return tokens.logp_M.sum()
