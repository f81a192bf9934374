"""A recipe on a card: what it takes, and what would fit."""

from dataclasses import dataclass, replace

from egpo.config import Config
from egpo.errors import InputError
from egpo.plans.cards import CARDS, Card
from egpo.plans.jobs import StepJob
from egpo.plans.memory import MemoryPlan, plan_memory
from egpo.plans.seconds import TimePlan, plan_seconds
from egpo.plans.shapes import ModelShape, read_shape


@dataclass(frozen=True)
class Plan:
    card: Card
    shape: ModelShape
    job: StepJob
    memory: MemoryPlan
    time: TimePlan

    @property
    def fits(self) -> bool:
        return self.memory.fits(self.card)


def plan_recipe(
    config: Config, card: str, prompt_tokens: int | None = None, response_tokens: int | None = None
) -> Plan:
    """Of the engine of one GPU, whatever engine the recipe names."""
    if card not in CARDS:
        raise InputError(f"no card `{card}`", where="--card", fix=f"it is one of {', '.join(CARDS)}")
    if config.model.device == "cpu":
        fix = "a plan is of a GPU: model.device=auto"
        raise InputError("the recipe is for a CPU", where="model.device", fix=fix)
    job = StepJob.of(config, prompt_tokens, response_tokens)
    return plan_job(read_shape(config.model.path), job, CARDS[card], config.update.micro_tokens)


def plan_job(shape: ModelShape, job: StepJob, card: Card, micro_tokens: int | None = None) -> Plan:
    memory = plan_memory(shape, job, card, micro_tokens)
    return Plan(card, shape, job, memory, plan_seconds(shape, replace(job, at_once=memory.at_once), card))


def longest_that_fits(shape: ModelShape, job: StepJob, card: Card) -> int:
    """Tokens of the longest response, a power of two, for which a step fits with every row sampled at once; 0: none."""
    lengths = [2**power for power in range(7, 18)]
    fitting = [length for length in lengths if _fits_at_once(shape, _of_length(job, length), card)]
    return max(fitting, default=0)


def _fits_at_once(shape: ModelShape, job: StepJob, card: Card) -> bool:
    memory = plan_memory(shape, job, card)
    return memory.fits(card) and memory.at_once == job.at_once


def _of_length(job: StepJob, length: int) -> StepJob:
    return replace(job, response_tokens=length, longest=length)
