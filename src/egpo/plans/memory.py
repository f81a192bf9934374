"""Memory of a step, by part, as the engine of one GPU uses it."""

from dataclasses import asdict, dataclass, replace

from egpo.plans.cards import Card
from egpo.plans.jobs import StepJob
from egpo.plans.shapes import ModelShape

CONTEXT_BYTES = 0.6e9
"""CUDA's own, and kernels."""
CHUNK_BYTES = 2**28
"""A slice of logits in the update, in float32."""
# As `egpo.local.cuda.activations` and `egpo.local.cuda.decoder` have them.
MOST_TOKENS, FEWEST_TOKENS, ACTIVATIONS_SHARE, CACHE_SHARE = 40_960, 2_048, 0.6, 0.25


@dataclass(frozen=True)
class Parts:
    """Bytes of each at the peak of a step. `logits` are a slice of them, the head's gradient and what goes into it."""

    weights: float
    optimizer: float
    gradients: float
    cache: float
    activations: float
    logits: float
    context: float = CONTEXT_BYTES

    @property
    def total(self) -> float:
        return float(sum(asdict(self).values()))


@dataclass(frozen=True)
class MemoryPlan:
    """`pass_tokens` go through the layers at once in the update; `at_once` rows are sampled together."""

    parts: Parts
    pass_tokens: int
    at_once: int

    def fits(self, card: Card) -> bool:
        """A little is lost between blocks of memory."""
        return self.parts.total <= 0.97 * card.bytes


def plan_memory(shape: ModelShape, job: StepJob, card: Card, micro_tokens: int | None = None) -> MemoryPlan:
    """With as many rows at once as fit: where the cache is too large for the card, half of them wait."""
    plan = _plan(shape, job, card, micro_tokens)
    while not plan.fits(card) and plan.at_once > 1:
        plan = _plan(shape, replace(job, at_once=plan.at_once // 2), card, micro_tokens)
    return plan


def _plan(shape: ModelShape, job: StepJob, card: Card, micro_tokens: int | None) -> MemoryPlan:
    size, learning = job.bytes_per_weight, 0 if job.lora else shape.weights
    loaded = size * shape.weights * (2 if job.reference else 1) + (0 if size == 4 else 4 * learning)
    per_token = size * shape.kept_numbers(job.gradient_checkpointing)
    left = (1 - CACHE_SHARE) * card.bytes - CONTEXT_BYTES - loaded - 12 * learning
    suited = max(FEWEST_TOKENS, min(MOST_TOKENS, int(ACTIVATIONS_SHARE * left / per_token)))
    pass_tokens = _pass_tokens(job, micro_tokens or suited)
    in_update = Parts(
        weights=size * (shape.weights * (2 if job.reference else 1) + shape.layers * shape.joint),
        optimizer=(8.0 if size == 4 else 12.0) * learning,
        gradients=4.0 * learning,
        cache=size * shape.cached_numbers * (job.at_once * job.longest + job.prompts * job.prompt_tokens),
        activations=pass_tokens * per_token,
        logits=2.0 * CHUNK_BYTES + 2 * size * shape.head + 10.0 * pass_tokens * shape.hidden,
    )
    return MemoryPlan(_peak(in_update, job, shape, card), pass_tokens, job.at_once)


def _peak(in_update: Parts, job: StepJob, shape: ModelShape, card: Card) -> Parts:
    """A large cache is given back before the update: then the larger of the two stages is the peak."""
    if in_update.cache <= CACHE_SHARE * card.bytes:
        return in_update
    in_sample = replace(in_update, gradients=0.0, activations=0.0, logits=8.0 * job.at_once * shape.vocabulary)
    return max(in_sample, replace(in_update, cache=0.0), key=lambda parts: parts.total)


def _pass_tokens(job: StepJob, budget: int) -> int:
    """Groups stay together where they fit; a sequence is never cut."""
    if job.group_tokens <= budget:
        return min(job.prompts, budget // job.group_tokens) * job.group_tokens
    return max(budget, job.prompt_tokens + job.longest - 1)
