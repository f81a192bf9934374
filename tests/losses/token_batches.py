"""Random tokens for loss forms, and what a loss form chooses from them."""

from dataclasses import replace

import torch

from egpo.losses import LOSSES, Clip, LossTokens, MiniBatchTokens

LENGTHS = (7, 1, 5, 12, 3)
PLAIN = Clip()


def tokens_of(seed=0, spread=0.3, lengths=LENGTHS, dtype=torch.float64):
    """Tokens of responses of these lengths. Old log-probabilities lie `spread` around the new ones."""
    generator = torch.Generator().manual_seed(seed)
    row_M = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    logp_M = -2 * torch.rand(len(row_M), generator=generator, dtype=dtype)
    old_M = logp_M + spread * torch.randn(len(row_M), generator=generator, dtype=dtype)
    advantage_M = torch.randn(len(lengths), generator=generator, dtype=dtype)[row_M]
    return LossTokens(logp_M.requires_grad_(), old_M, advantage_M, row_M)


def as_mini_batch(tokens, seed=0):
    """All these tokens as one mini-batch, to choose from."""
    generator = torch.Generator().manual_seed(seed)
    uniform_K = torch.rand(len(tokens.logp_M), generator=generator, dtype=torch.float64)
    return MiniBatchTokens(tokens.old_logp_M, tokens.advantage_M, torch.zeros_like(uniform_K), uniform_K)


def marked(name, tokens, **settings):
    """The same tokens with what the loss form chose; unchanged if it chooses nothing."""
    mark = LOSSES[name].mark
    return tokens if mark is None else replace(tokens, marked_M=mark(as_mini_batch(tokens), **settings))


def loss_and_gradient(name, tokens, clip=PLAIN, **settings):
    found = LOSSES[name](marked(name, tokens, **settings), clip, **settings)
    (gradient_M,) = torch.autograd.grad(found.loss_M.sum(), tokens.logp_M)
    return found, gradient_M
