"""What lives as long as a supervised run, and its one step."""

import math
from dataclasses import dataclass, field

from egpo.advantages.signals import Metrics
from egpo.config import SftConfig
from egpo.local.policies.load import load_policy
from egpo.local.policies.lora import add_adapters
from egpo.local.policies.policy import Policy
from egpo.local.sft.batches import Batch, plan
from egpo.local.sft.data import TrainingData, load_data
from egpo.local.sft.gradients import accumulate, mean_nll
from egpo.local.stages import Stages
from egpo.local.updates.budget import TokenBudget, budget_for
from egpo.local.updates.optimizer import Optimizer
from egpo.local.updates.schedule import learning_rate


@dataclass(eq=False)
class SftRun:
    """`batches` are all its steps, known from the start. `budget` holds what the run has learnt about memory."""

    config: SftConfig
    policy: Policy
    optimizer: Optimizer
    data: TrainingData
    batches: list[Batch]
    budget: TokenBudget
    stages: Stages = field(default_factory=Stages)

    @property
    def num_steps(self) -> int:
        return len(self.batches)

    @property
    def evaluates(self) -> bool:
        """Whether there is something to evaluate on, and it is asked for."""
        return self.data.evaluation is not None and self.config.validation.every > 0


def open_sft_run(config: SftConfig) -> SftRun:
    """Everything loaded, read and checked; nothing written."""
    policy = load_policy(config.model, config.seed)
    data = load_data(config.data, policy, config.seed)
    if config.model.lora is not None:
        add_adapters(policy.model, config.model.lora, config.seed)
    return SftRun(
        config=config,
        policy=policy,
        optimizer=Optimizer(policy.model.named_parameters(), config.update),
        data=data,
        batches=plan(
            data.train.length_E, batch_tokens=config.update.batch_tokens, epochs=config.epochs, seed=config.seed
        ),
        budget=budget_for(config.update.micro_tokens, policy),
    )


def sft_step(run: SftRun, number: int) -> Metrics:
    """One optimizer step on the mean over its batch's learned tokens. `number` counts from 0."""
    batch, train = run.batches[number], run.data.train
    with run.stages.enter("update"):
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
    """The loss on the evaluation set."""
    assert run.data.evaluation is not None  # `evaluates` is for the caller to ask
    with run.stages.enter("validate"):
        loss = mean_nll(run.policy, run.data.evaluation, run.budget)
    return {"val/loss": loss, "val/perplexity": perplexity(loss)}


def perplexity(loss: float) -> float:
    """exp(loss); infinite where that is too large for a float."""
    return math.exp(loss) if loss < 700 else math.inf
