"""Estimate the memory of a training step by part, and its seconds by stage, for the local engine on one GPU.

Seconds follow from the bytes moved and the operations computed, at the fraction of the GPU's rates that the engine
reaches. These fractions were measured on an H200 (docs/speed.md); for other GPUs they are a guess.
"""

from dataclasses import asdict, dataclass, replace

from egpo.config import Config
from egpo.errors import InputError
from egpo.plans.shapes import CARDS, Card, ModelShape, StepJob, read_shape
from egpo.support import GRADIENT_BYTES, MOMENT_BYTES, optimizer_bytes

CONTEXT_BYTES = 0.6e9
"""Memory of the CUDA context and the loaded kernels."""
CHUNK_BYTES = 2**28
"""Memory of one slice of float32 logits in the update."""
# The same values as in `egpo.local.updates.micro_batches` and `egpo.local.sampling.cuda.decoder`.
MOST_TOKENS, FEWEST_TOKENS, ACTIVATIONS_SHARE, CACHE_SHARE = 40_960, 2_048, 0.6, 0.25


@dataclass(frozen=True)
class Parts:
    """The memory at the peak of a step, in bytes by part.

    `logits` contains one slice of logits, the gradient of the head, and the head's inputs.
    """

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
    """The memory of a step. `pass_tokens`: tokens per forward pass of the update; `at_once`: rows sampled together."""

    parts: Parts
    pass_tokens: int
    at_once: int

    def fits(self, card: Card) -> bool:
        """Return whether the step fits into the GPU's memory, with 3 % left for fragmentation."""
        return self.parts.total <= 0.97 * card.bytes


def plan_memory(shape: ModelShape, job: StepJob, card: Card, micro_tokens: int | None = None) -> MemoryPlan:
    """Return the memory plan of a step. The number of rows sampled together is halved until the plan fits."""
    plan = _plan(shape, job, card, micro_tokens)
    while not plan.fits(card) and plan.at_once > 1:
        plan = _plan(shape, replace(job, at_once=plan.at_once // 2), card, micro_tokens)
    return plan


def _plan(shape: ModelShape, job: StepJob, card: Card, micro_tokens: int | None) -> MemoryPlan:
    plan = plan_parts(shape, job, card, micro_tokens)
    return replace(plan, parts=_peak(plan.parts, job, shape, card))


def plan_parts(shape: ModelShape, job: StepJob, card: Card, micro_tokens: int | None = None) -> MemoryPlan:
    """Return the memory of the update by part, with the key-value cache, before it is decided whether that is freed."""
    size, trained = job.bytes_per_weight, 0 if job.lora else shape.weights
    loaded = size * shape.weights * job.model_copies + (optimizer_bytes(size) - MOMENT_BYTES) * trained
    per_token = size * shape.kept_numbers(job.gradient_checkpointing)
    left = (1 - CACHE_SHARE) * card.bytes - CONTEXT_BYTES - loaded - (GRADIENT_BYTES + MOMENT_BYTES) * trained
    suited = max(FEWEST_TOKENS, min(MOST_TOKENS, int(ACTIVATIONS_SHARE * left / per_token)))
    pass_tokens = _pass_tokens(job, micro_tokens or suited)
    in_update = Parts(
        weights=size * (shape.weights * job.model_copies + shape.layers * shape.joint),
        optimizer=float(optimizer_bytes(size)) * trained,
        gradients=float(GRADIENT_BYTES) * trained,
        cache=size * shape.cached_numbers * (job.at_once * job.longest + job.prompts * job.prompt_tokens),
        activations=pass_tokens * per_token,
        logits=2.0 * CHUNK_BYTES + 2 * size * shape.head + 10.0 * pass_tokens * shape.hidden,
    )
    return MemoryPlan(in_update, pass_tokens, job.at_once)


def _peak(in_update: Parts, job: StepJob, shape: ModelShape, card: Card) -> Parts:
    """Return the memory of sampling or of the update, whichever needs more.

    A key-value cache larger than `CACHE_SHARE` of the GPU's memory is freed before the update. A smaller one is kept,
    so that the update needs more.
    """
    if in_update.cache <= CACHE_SHARE * card.bytes:
        return in_update
    in_sample = replace(in_update, gradients=0.0, activations=0.0, logits=8.0 * job.at_once * shape.vocabulary)
    return max(in_sample, replace(in_update, cache=0.0), key=lambda parts: parts.total)


def _pass_tokens(job: StepJob, budget: int) -> int:
    """Return the number of tokens in a forward pass. Groups stay together if they fit; a sequence is never split."""
    if job.group_tokens <= budget:
        return min(job.prompts, budget // job.group_tokens) * job.group_tokens
    return max(budget, job.prompt_tokens + job.longest - 1)


_CACHE_SHARE, _WEIGHT_SHARE, _PRODUCT_SHARE, _ATTENTION_SHARE = 0.87, 0.6, 0.9, 0.18
_LAYER_S = 40e-6  # kernel launches of one layer for one token per row, besides reading weights
_TEXT_S = 1e-6  # decoding a token to text, on the host
_UPDATE_S = 0.08  # the work of the host and of the optimizer in an update


@dataclass(frozen=True)
class TimePlan:
    """The seconds of a step by stage."""

    sample_s: float
    update_s: float

    @property
    def step_s(self) -> float:
        return self.sample_s + self.update_s


def plan_seconds(shape: ModelShape, job: StepJob, card: Card) -> TimePlan:
    return TimePlan(sample_seconds(shape, job, card), update_seconds(shape, job, card))


def sample_seconds(shape: ModelShape, job: StepJob, card: Card) -> float:
    """Return the seconds of sampling. Each decoding step reads all weights, and the keys and values of each row."""
    waves = -(-job.rows // job.at_once)
    steps = job.longest + (waves - 1) * job.response_tokens
    own = job.new_tokens * (job.response_tokens + 1) / 2
    prompts = min(job.prompts, job.at_once) * job.prompt_tokens * steps
    keys_s = job.bytes_per_weight * shape.cached_numbers * (own + prompts) / (_CACHE_SHARE * card.bytes_per_s)
    weights = job.bytes_per_weight * (shape.layers * shape.layer + shape.head)
    token_s = weights / (_WEIGHT_SHARE * card.bytes_per_s) + shape.layers * _LAYER_S
    return keys_s + steps * token_s + job.new_tokens * _TEXT_S


def update_seconds(shape: ModelShape, job: StepJob, card: Card) -> float:
    """Return the seconds of the update.

    The operations are three matrix products per weight and token (four for the head and with gradient checkpointing,
    one less for frozen weights), attention, and passes over the activations.
    """
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
class StepPlan:
    """The memory and time of one step of `job` with a model of `shape` on the GPU `card`."""

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
) -> StepPlan:
    """Plan one step of a recipe for the local engine, even if the recipe names another engine.

    Prompt and response lengths default to the recipe's maximum.
    """
    if card not in CARDS:
        raise InputError(f"unknown GPU `{card}`", where="--card", fix=f"choose from {', '.join(CARDS)}")
    if config.model.device == "cpu":
        fix = "a plan is for a GPU: set model.device=auto"
        raise InputError("the recipe trains on a CPU", where="model.device", fix=fix)
    job = StepJob.of(config, prompt_tokens, response_tokens)
    return plan_job(read_shape(config.model.path), job, CARDS[card], config.update.micro_tokens)


def plan_job(shape: ModelShape, job: StepJob, card: Card, micro_tokens: int | None = None) -> StepPlan:
    memory = plan_memory(shape, job, card, micro_tokens)
    return StepPlan(card, shape, job, memory, plan_seconds(shape, replace(job, at_once=memory.at_once), card))


def longest_that_fits(shape: ModelShape, job: StepJob, card: Card) -> int:
    """Return the longest response in tokens (a power of two) for which all rows can be sampled together; 0 if none."""
    lengths = [2**power for power in range(7, 18)]
    fitting = [length for length in lengths if _fits_at_once(shape, _of_length(job, length), card)]
    return max(fitting, default=0)


def _fits_at_once(shape: ModelShape, job: StepJob, card: Card) -> bool:
    memory = plan_memory(shape, job, card)
    return memory.fits(card) and memory.at_once == job.at_once


def _of_length(job: StepJob, length: int) -> StepJob:
    return replace(job, response_tokens=length, longest=length)
