"""Memory of a step, by part, as the engine of one GPU uses it.

Seconds of a step, from bytes and operations at the shares of the card's rates that the engine reaches.

The shares are the H200's, by the profiles in docs/speed.md; on a card of other proportions they are a guess.

A recipe on a card: what it takes, and what would fit.
"""

from dataclasses import asdict, dataclass, replace

from egpo.config import Config
from egpo.errors import InputError
from egpo.plans.shapes import CARDS, Card, ModelShape, StepJob, read_shape

CONTEXT_BYTES = 0.6e9
"""CUDA's own, and kernels."""
CHUNK_BYTES = 2**28
"""A slice of logits in the update, in float32."""
# As `egpo.local.updates.micro_batches` and `egpo.local.sampling.cuda.decoder` have them.
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


_CACHE_SHARE, _WEIGHT_SHARE, _PRODUCT_SHARE, _ATTENTION_SHARE = 0.87, 0.6, 0.9, 0.18
_LAYER_S = 40e-6  # kernels of one layer for one token a row, besides what they read
_TEXT_S = 1e-6  # a token to text, on the host
_UPDATE_S = 0.08  # the host's share of an update, and the optimizer's


@dataclass(frozen=True)
class TimePlan:
    sample_s: float
    update_s: float

    @property
    def step_s(self) -> float:
        return self.sample_s + self.update_s


def plan_seconds(shape: ModelShape, job: StepJob, card: Card) -> TimePlan:
    return TimePlan(_sample_s(shape, job, card), _update_s(shape, job, card))


def _sample_s(shape: ModelShape, job: StepJob, card: Card) -> float:
    """Every token reads the weights once for all rows, and each row's keys and values."""
    waves = -(-job.rows // job.at_once)
    steps = job.longest + (waves - 1) * job.response_tokens
    own = job.new_tokens * (job.response_tokens + 1) / 2
    prompts = min(job.prompts, job.at_once) * job.prompt_tokens * steps
    keys_s = job.bytes_per_weight * shape.cached_numbers * (own + prompts) / (_CACHE_SHARE * card.bytes_per_s)
    weights = job.bytes_per_weight * (shape.layers * shape.layer + shape.head)
    token_s = weights / (_WEIGHT_SHARE * card.bytes_per_s) + shape.layers * _LAYER_S
    return keys_s + steps * token_s + job.new_tokens * _TEXT_S


def _update_s(shape: ModelShape, job: StepJob, card: Card) -> float:
    """Three products a weight and token, four for the head, one less where weights do not learn; attention; and passes
    over what the layers keep."""
    tokens = job.prompts * job.group_tokens
    less = 2 if job.lora else 0
    products = (8 if job.gradient_checkpointing else 6) - less
    operations = products * shape.layers * shape.layer * tokens + (8 - less) * shape.head * job.new_tokens
    scores = job.new_tokens * ((job.response_tokens + 1) / 2 + job.prompt_tokens)
    attention = 4 * 3.5 * shape.layers * shape.queries * shape.width * scores
    moved = 6 * job.bytes_per_weight * shape.kept_numbers() * tokens + 12 * shape.vocabulary * job.new_tokens
    rate = card.operations_per_s
    once_s = operations / (_PRODUCT_SHARE * rate) + attention / (_ATTENTION_SHARE * rate) + moved / card.bytes_per_s
    forward_s = 2 * (shape.layers * shape.layer + shape.head) * tokens / (_PRODUCT_SHARE * rate)
    reference_s = forward_s if job.reference else 0.0
    return job.epochs * once_s + reference_s + _UPDATE_S


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
