"""The loss over learned tokens, and its gradient. N tokens of a pack, M learned ones, D hidden."""

import torch
from torch import Tensor

from egpo.local.policies.policy import Policy
from egpo.local.sft.examples import Examples
from egpo.local.sft.packing import Part, cut_by_tokens, pack_examples
from egpo.local.updates.budget import TokenBudget, within_memory
from egpo.local.updates.optimizer import Optimizer
from egpo.token_stats import token_stats


def nll_sum(policy: Policy, examples: Examples, part: Part) -> Tensor:
    """Minus the log-probability of the part's learned tokens, summed; with a gradient where gradients are on."""
    pack = pack_examples(examples, part, policy.device)
    hidden_MD = policy.hidden(pack)[pack.source_M]
    logp_M, _ = token_stats(hidden_MD, policy.head_VD, pack.target_M)
    return -logp_M.sum()


def accumulate(policy: Policy, optimizer: Optimizer, examples: Examples, chosen: Tensor, budget: TokenBudget) -> float:
    """The gradient of the mean over all learned tokens of the chosen examples, into the optimizer; that mean.

    Every token has the same weight, whichever example or part it stands in: cuts change the result by rounding alone.
    """
    num_learned = int(examples.num_learned_E[chosen].sum())

    def work(part: Part) -> Tensor:
        loss = nll_sum(policy, examples, part) / num_learned
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    losses = within_memory(
        budget,
        cut=lambda tokens: cut_by_tokens(chosen, examples.length_E, tokens),
        work=work,
        undo=optimizer.forget_gradients,
    )
    return float(torch.stack(losses).sum())


@torch.no_grad()
def mean_nll(policy: Policy, examples: Examples, budget: TokenBudget) -> float:
    """The mean over all learned tokens of all examples: the evaluation loss."""
    losses = within_memory(
        budget,
        cut=lambda tokens: cut_by_tokens(torch.arange(len(examples)), examples.length_E, tokens),
        work=lambda part: nll_sum(policy, examples, part).double(),
        undo=lambda: None,
    )
    return float(torch.stack(losses).sum()) / int(examples.num_learned_E.sum())
