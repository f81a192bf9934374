"""Estimate memory per GPU and seconds by stage of a step with verl on many GPUs, and choose the split for vLLM.

verl trains with FSDP2: groups of `fsdp_size` GPUs, by default all, each hold shards of weights, gradients and moments.
It samples with vLLM on the same GPUs: groups of `tensor_parallel` GPUs share one copy of the model, and `data_parallel`
such groups share the rows. The part of one GPU is that of `step_plan.py`, which was checked against measurements; what
is added here are shards, links between GPUs and verl's own passes. Every number of it is a field of `Assumptions`. No
plan for more than one GPU has been compared with a measurement (docs/scale.md).
"""

from dataclasses import dataclass, replace

from egpo.config import Config
from egpo.errors import InputError
from egpo.plans.cluster_seconds import Cluster, StageSeconds, bound_seconds, stage_seconds
from egpo.plans.links import LIKE_EMBEDDED, NODE, Assumptions, assumptions_for
from egpo.plans.shapes import CARDS, Card, ModelShape, StepJob, read_shape
from egpo.plans.splits import (
    FSDP_SIZE,
    MERGES,
    Split,
    mesh_of,
    part_of,
    possible_fsdp_sizes,
    possible_splits,
    require_equal_parts,
    require_split,
    value_of,
)
from egpo.plans.step_plan import Parts, plan_parts
from egpo.support import GRADIENT_BYTES, MASTER_BYTES, MOMENT_BYTES


@dataclass(frozen=True)
class ClusterPlan:
    """A step on `split.gpus` GPUs. `sampling` and `update` are the memory of one GPU in these stages."""

    split: Split
    fsdp_size: int
    """GPUs that divide weights, gradients and moments among them."""
    card: Card
    sampling: Parts
    update: Parts
    at_once: int
    """Rows that a copy of the model samples at a time. The others wait for room in its key-value cache."""
    pass_tokens: int
    """Tokens of one pass of the update on one GPU."""
    seconds: StageSeconds
    bound_s: float
    """Seconds of the operations alone, at the full rate of all GPUs: no plan is below it."""

    @property
    def peak_bytes(self) -> float:
        return max(self.sampling.total, self.update.total)

    @property
    def fits(self) -> bool:
        return self.peak_bytes <= 0.97 * self.card.bytes

    @property
    def memory_share(self) -> float:
        """The share of the memory that vLLM takes: `gpu_memory_utilization`."""
        parts = self.sampling
        return (parts.weights + parts.cache + parts.logits) / self.card.bytes


def plan_split(
    shape: ModelShape,
    job: StepJob,
    card: Card,
    split: Split,
    assumed: Assumptions | None = None,
    micro_tokens: int | None = None,
    fsdp_size: int | None = None,
) -> ClusterPlan:
    """Plan a step with this split. `fsdp_size=None`: all GPUs share the weights."""
    assumed = assumed or Assumptions()
    require_split(shape, split.gpus, split.tensor_parallel, assumed.node_gpus)
    cluster = Cluster(card, split, mesh_of(split.gpus, fsdp_size), assumed)
    require_equal_parts(job, split.gpus)
    whole = plan_parts(shape, job, card, micro_tokens)
    on_gpu = part_of(job, split.gpus, shared=bool(assumed.shared_prompts))
    tokens = int(assumed.padding * on_gpu.prompts * on_gpu.group_tokens)
    pass_tokens = whole.pass_tokens if split.gpus == 1 else min(whole.pass_tokens, tokens)
    sampling, at_once = _sampling_parts(shape, job, whole.parts, cluster)
    if split.gpus == 1 and assumed == LIKE_EMBEDDED:
        at_once = min(at_once, whole.at_once)
    sampled = replace(part_of(job, split.data_parallel), at_once=at_once)
    return ClusterPlan(
        split=split,
        fsdp_size=cluster.mesh.shards,
        card=card,
        sampling=sampling,
        update=_update_parts(shape, job, whole.parts, cluster, pass_tokens),
        at_once=at_once,
        pass_tokens=pass_tokens,
        seconds=stage_seconds(shape, job, sampled, on_gpu, cluster, pass_tokens),
        bound_s=bound_seconds(shape, job, card, split.gpus),
    )


def _optimizer_bytes(shape: ModelShape, job: StepJob, whole: Parts, cluster: Cluster) -> float:
    """Return the bytes of a GPU's shards of weights and of moments. Trained weights and adapters are in float32."""
    trained = job.adapter_weights if job.lora else shape.weights
    if not job.lora and cluster.assumed.shares_weights:
        return whole.optimizer / cluster.mesh.shards  # without float32 copies, if the shared weights are in float32
    frozen = cluster.assumed.base_bytes * shape.weights if job.lora else 0
    return (frozen + (MASTER_BYTES + MOMENT_BYTES) * trained) / cluster.mesh.shards


def _update_parts(shape: ModelShape, job: StepJob, whole: Parts, cluster: Cluster, pass_tokens: int) -> Parts:
    """Return the memory of a GPU in the update: shards, and the two units that FSDP gathers at a time.

    FSDP2 casts a unit when it gathers it: there are no shards but those of `_optimizer_bytes`.
    """
    size, shards = job.bytes_per_weight, cluster.mesh.shards
    weights = min(size * shape.weights, 2.0 * size * max(shape.layer, shape.head))
    if cluster.assumed.shares_weights:
        weights += size * shape.weights / shards + _reference_bytes(shape, job, cluster)
        weights = whole.weights if cluster.gpus == 1 else min(whole.weights, weights)
    per_token = size * shape.kept_numbers(job.gradient_checkpointing)
    return replace(
        whole,
        weights=weights,
        optimizer=_optimizer_bytes(shape, job, whole, cluster),
        gradients=(whole.gradients + GRADIENT_BYTES * job.adapter_weights) / shards,
        cache=0.0,
        activations=pass_tokens * per_token,
        logits=whole.logits - 10.0 * shape.hidden * (whole.activations / per_token - pass_tokens),
    )


def _reference_bytes(shape: ModelShape, job: StepJob, cluster: Cluster) -> float:
    """Return the bytes of a GPU's shards of a reference of its own: verl keeps them in the host's memory.

    All GPUs divide it, whatever the policy's `fsdp_size` is.
    """
    on_gpu = job.model_copies == 2 and cluster.assumed.shares_weights
    return job.bytes_per_weight * shape.weights / cluster.gpus if on_gpu else 0.0


def _sampling_parts(shape: ModelShape, job: StepJob, whole: Parts, cluster: Cluster) -> tuple[Parts, int]:
    """Return the memory of a GPU while vLLM samples, and how many rows of a copy fit into its cache at a time."""
    size, card, split = job.bytes_per_weight, cluster.card, cluster.split
    tensor = split.tensor_parallel
    rows = part_of(job, split.data_parallel)
    heads = min(tensor, shape.keys)  # with more ranks than key-value heads, each rank has a copy of one
    per_row = size * shape.cached_numbers / heads * job.longest + 8.0 * shape.vocabulary / tensor
    # The embedded engine's sampler keeps second copies of joined projections. vLLM loads them joined.
    joined = size * shape.layers * shape.joint if cluster.assumed.shares_weights else 0
    weights = (size * shape.weights + joined) / tensor + _reference_bytes(shape, job, cluster)
    adapters = 0 if job.lora_merged else size * job.adapter_weights
    fixed = replace(
        whole,
        weights=weights + adapters,
        optimizer=_optimizer_bytes(shape, job, whole, cluster),
        gradients=0.0,
        cache=size * shape.cached_numbers / heads * rows.prompts * job.prompt_tokens,
        activations=0.0,
        logits=0.0,
    )
    room = max(0.0, 0.97 * card.bytes - fixed.total)
    at_once = max(1, min(rows.at_once, int(room / per_row)))
    cache = fixed.cache + at_once * (per_row - 8.0 * shape.vocabulary / tensor)
    return replace(fixed, cache=cache, logits=8.0 * at_once * shape.vocabulary / tensor), at_once


MICRO_TOKENS = 16_384
"""Tokens of a pass where the recipe sets none, as the launcher of verl sets them."""


def plan_cluster(
    config: Config,
    card: str,
    prompt_tokens: int | None = None,
    response_tokens: int | None = None,
    assumed: Assumptions | None = None,
    fsdp_size: int | None = None,
) -> list[ClusterPlan]:
    """Plan a step of a recipe with verl for each possible split, or for the one that the recipe sets.

    `fsdp_size` replaces that of the recipe.
    """
    if card not in CARDS:
        raise InputError(f"unknown GPU `{card}`", where="--card", fix=f"choose from {', '.join(CARDS)}")
    if config.verl.device == "cpu":
        raise InputError("the recipe trains on a CPU", where="verl.device", fix="a plan is for GPUs: leave it out")
    assumed = assumed or assumptions_of(config, card, {})
    shape, gpus = read_shape(config.model.path), config.verl.ranks
    job = _job_of(config, shape, prompt_tokens, response_tokens)
    micro = max(config.update.micro_tokens or MICRO_TOKENS, job.prompt_tokens + job.longest)
    size = value_of(config.verl.raw, FSDP_SIZE) if fsdp_size is None else fsdp_size
    shards = mesh_of(gpus, size).shards
    chosen, splits = config.verl.tensor_parallel, possible_splits(shape, gpus, assumed.node_gpus)
    if chosen is not None:
        require_split(shape, gpus, chosen, assumed.node_gpus)
        splits = [Split(chosen, gpus // chosen)]
    return [plan_split(shape, job, CARDS[card], split, assumed, micro, shards) for split in splits]


def assumptions_of(config: Config, card: str, given: dict[str, float]) -> Assumptions:
    """Return the assumptions for a recipe and a GPU, with those that the user sets.

    The nodes of a recipe with several are its own, up to eight GPUs. A single node has no network.
    """
    return assumptions_for(card, given, min(config.verl.gpus, NODE) if config.verl.nodes > 1 else NODE)


def _job_of(config: Config, shape: ModelShape, prompt_tokens: int | None, response_tokens: int | None) -> StepJob:
    """Return the work of a step. Every copy of vLLM samples all of its rows that fit: it has no other limit here."""
    job, lora = StepJob.of(config, prompt_tokens, response_tokens), config.model.lora
    job = replace(job, at_once=job.rows if config.rollout.rows_at_once is None else job.at_once)
    if lora is None:
        return job
    merged = value_of(config.verl.raw, MERGES) is True
    return replace(
        job,
        adapter_weights=shape.adapter_weights(lora.rank, lora.layers),
        adapter_tensors=shape.adapter_tensors(lora.layers),
        lora_merged=merged,
    )


def plan_fsdp_sizes(
    config: Config,
    card: str,
    prompt_tokens: int | None = None,
    response_tokens: int | None = None,
    assumed: Assumptions | None = None,
) -> list[ClusterPlan]:
    """Return the best plan of a recipe for each possible `fsdp_size`, from all GPUs down to one."""
    return [
        best_plan(plan_cluster(config, card, prompt_tokens, response_tokens, assumed, size))
        for size in possible_fsdp_sizes(config.verl.ranks)
    ]


def best_plan(plans: list[ClusterPlan]) -> ClusterPlan:
    """Return the fastest plan that fits; if none fits, the one that needs the least memory."""
    fitting = [plan for plan in plans if plan.fits]
    if fitting:
        return min(fitting, key=lambda plan: plan.seconds.step_s)
    return min(plans, key=lambda plan: plan.peak_bytes)
