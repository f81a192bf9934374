"""The state of a supervised run, its loss, one step, and one evaluation.

Tensor suffixes: M learned tokens of a pack, D hidden size, V vocabulary.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from egpo.advantages.signals import Metrics
from egpo.config import SftConfig
from egpo.local.models.loading import load_policy
from egpo.local.models.lora import add_adapters
from egpo.local.models.policy import Policy
from egpo.local.run import Stages
from egpo.local.sft.batches import (
    ExampleBatch,
    Part,
    TrainingData,
    cut_by_tokens,
    load_data,
    pack_examples,
    plan_batches,
)
from egpo.local.sft.examples import Examples
from egpo.local.updates.micro_batches import TokenBudget, budget_for, within_memory
from egpo.local.updates.optimizer import Optimizer, learning_rate
from egpo.token_stats import token_stats


@dataclass(eq=False)
class SftRun:
    """The state of a supervised run.

    `batches`: the examples of every step. `budget`: the number of tokens in one forward pass; it shrinks if memory runs
    out.
    """

    config: SftConfig
    policy: Policy
    optimizer: Optimizer
    data: TrainingData
    batches: list[ExampleBatch]
    budget: TokenBudget
    stages: Stages = field(default_factory=Stages)

    @property
    def num_steps(self) -> int:
        return len(self.batches)

    @property
    def evaluates(self) -> bool:
        """True if there is an evaluation set and `validation.every` is not 0."""
        return self.data.evaluation is not None and self.config.validation.every > 0


def open_sft_run(config: SftConfig) -> SftRun:
    """Load the model, and read and tokenise the data, without writing any file."""
    policy = load_policy(config.model, config.seed)
    data = load_data(config.data, policy, config.seed)
    if config.model.lora is not None:
        add_adapters(policy.model, config.model.lora, config.seed)
    return SftRun(
        config=config,
        policy=policy,
        optimizer=Optimizer(policy.model.named_parameters(), config.update),
        data=data,
        batches=plan_batches(
            data.train.length_E, batch_tokens=config.update.batch_tokens, epochs=config.epochs, seed=config.seed
        ),
        budget=budget_for(config.update.micro_tokens, policy),
    )


def sft_step(run: SftRun, number: int) -> Metrics:
    """Take one optimizer step on the mean nll of the learned tokens of a batch. `number` counts from 0."""
    batch, train = run.batches[number], run.data.train
    with run.stages.enter("update", changes_state=True):
        loss = accumulate(run.policy, run.optimizer, train, batch.examples, run.budget)
        lr = learning_rate(run.config.update, number, run.num_steps)
        grad_norm = run.optimizer.step(lr)
    return {
        "train/loss": loss,
        "train/perplexity": perplexity(loss),
        "train/epoch": batch.epoch,
        "train/num_examples": len(batch.examples),
        "train/num_learned_tokens": int(train.num_learned_E[batch.examples].sum()),
        "perf/total_num_tokens": int(train.length_E[batch.examples].sum()),
        "actor/lr": lr,
        "actor/grad_norm": grad_norm,
    }


def evaluate(run: SftRun) -> Metrics:
    """Return the loss and the perplexity on the evaluation set."""
    assert run.data.evaluation is not None  # the caller has tested `evaluates`
    with run.stages.enter("validate"):
        loss = mean_nll(run.policy, run.data.evaluation, run.budget)
    return {"val/loss": loss, "val/perplexity": perplexity(loss)}


def nll_sum(policy: Policy, examples: Examples, part: Part) -> Tensor:
    """Return the sum of minus the log-probabilities of the part's learned tokens, differentiable."""
    pack = pack_examples(examples, part, policy.device)
    hidden_MD = policy.hidden(pack)[pack.source_M]
    logp_M, _ = token_stats(hidden_MD, policy.head_VD, pack.target_M)
    return -logp_M.sum()


def accumulate(policy: Policy, optimizer: Optimizer, examples: Examples, chosen: Tensor, budget: TokenBudget) -> float:
    """Add the gradient of the mean nll over all learned tokens of the chosen examples. Return that mean.

    Every token has the same weight, whichever example it belongs to. How the examples are cut into passes changes the
    result only by rounding.
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
        undo=optimizer.discard_gradients,
    )
    return float(torch.stack(losses).sum())


@torch.no_grad()
def mean_nll(policy: Policy, examples: Examples, budget: TokenBudget) -> float:
    """Return the mean nll over all learned tokens of all examples: the evaluation loss."""
    losses = within_memory(
        budget,
        cut=lambda tokens: cut_by_tokens(torch.arange(len(examples)), examples.length_E, tokens),
        work=lambda part: nll_sum(policy, examples, part).double(),
        undo=lambda: None,
    )
    return float(torch.stack(losses).sum()) / int(examples.num_learned_E.sum())


def perplexity(loss: float) -> float:
    """Return exp(loss), or infinity if that overflows."""
    return math.exp(loss) if loss < 700 else math.inf
