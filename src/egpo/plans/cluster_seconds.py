"""The seconds of a step with verl by stage: computing as on one GPU, collectives over the links between GPUs."""

from dataclasses import asdict, dataclass, replace

from egpo.plans.links import Assumptions, Mesh, all_reduce_s, gather_s, overlapped_s
from egpo.plans.shapes import Card, ModelShape, StepJob
from egpo.plans.splits import Split
from egpo.plans.step_plan import sample_seconds, update_seconds
from egpo.support import GRADIENT_BYTES, MASTER_BYTES

BFLOAT16_BYTES = 2
"""Bytes of a weight with merged adapters on its way to vLLM, whatever the precision of computing is."""


@dataclass(frozen=True)
class Cluster:
    """The GPUs of a plan, and how vLLM (`split`) and FSDP2 (`mesh`) use them."""

    card: Card
    split: Split
    mesh: Mesh
    assumed: Assumptions

    @property
    def gpus(self) -> int:
        return self.split.gpus


@dataclass(frozen=True)
class StageSeconds:
    """The seconds of a step by stage."""

    rollout_s: float
    log_probs_s: float
    update_s: float
    weight_sync_s: float
    overhead_s: float

    @property
    def step_s(self) -> float:
        return float(sum(asdict(self).values()))


def stage_seconds(
    shape: ModelShape, job: StepJob, sampled: StepJob, on_gpu: StepJob, cluster: Cluster, pass_tokens: int
) -> StageSeconds:
    """Return the seconds of each stage. `sampled` are the rows of a copy of vLLM, `on_gpu` those of a GPU's update."""
    return StageSeconds(
        rollout_s=_rollout_s(shape, sampled, cluster),
        log_probs_s=_log_probs_s(shape, on_gpu, cluster, pass_tokens),
        update_s=_update_s(shape, on_gpu, cluster, pass_tokens),
        weight_sync_s=_weight_sync_s(shape, job, cluster),
        overhead_s=cluster.assumed.overhead_s,
    )


def _rollout_s(shape: ModelShape, job: StepJob, cluster: Cluster) -> float:
    """Return the seconds of sampling: a copy reads its shards in parallel, and reduces twice in each layer."""
    assumed, card, tensor = cluster.assumed, cluster.card, cluster.split.tensor_parallel
    faster = replace(card, bytes_per_s=card.bytes_per_s * tensor)
    alone = assumed.rollout_factor * sample_seconds(shape, job, faster)
    if tensor == 1:
        return alone
    steps = job.longest + (-(-job.rows // job.at_once) - 1) * job.response_tokens
    moved = 2 * (tensor - 1) / tensor * job.bytes_per_weight * job.at_once * shape.hidden
    return alone + steps * 2 * shape.layers * (assumed.reduce_s + moved / assumed.link(tensor))


def _num_passes(job: StepJob, pass_tokens: int, assumed: Assumptions) -> int:
    return max(1, -(-int(assumed.padding * job.prompts * job.group_tokens) // max(1, pass_tokens)))


def _update_s(shape: ModelShape, job: StepJob, cluster: Cluster, pass_tokens: int) -> float:
    """Return the seconds of the update. Each pass gathers the weights twice, and scatters the gradients in float32.

    With several replicas, each pass also adds their gradients. Frozen weights have none.
    """
    assumed, mesh = cluster.assumed, cluster.mesh
    compute_s = assumed.padding * update_seconds(shape, replace(job, reference=False), cluster.card)
    trained = job.adapter_weights if job.lora else shape.weights
    scattered = shape.layers if job.lora else shape.layers + 1  # embeddings and head have no adapters
    gathered = 2 * job.bytes_per_weight * (shape.weights + job.adapter_weights)
    links_s = gather_s(gathered + GRADIENT_BYTES * trained, 2 * (shape.layers + 1) + scattered, mesh, assumed)
    links_s += all_reduce_s(GRADIENT_BYTES * trained, scattered, mesh, assumed)
    passes = job.epochs * _num_passes(job, pass_tokens, assumed)
    return overlapped_s(compute_s, passes * links_s, assumed)


def forward_seconds(shape: ModelShape, job: StepJob, cluster: Cluster) -> float:
    """Return the seconds of one forward pass over the rows of a GPU."""
    with_reference, without = (
        update_seconds(shape, replace(job, reference=one), cluster.card) for one in (True, False)
    )
    return cluster.assumed.padding * (with_reference - without)


def _log_probs_s(shape: ModelShape, job: StepJob, cluster: Cluster, pass_tokens: int) -> float:
    """Return the seconds of the passes before the update: the policy's own, and the reference's if there is one."""
    assumed, mesh = cluster.assumed, cluster.mesh
    own_s = assumed.log_probs * _forwards_s(shape, job, cluster, mesh, pass_tokens)
    if not job.reference:
        return own_s
    if job.lora:
        return own_s + _forwards_s(shape, job, cluster, mesh, pass_tokens)
    # A reference of its own has its own `fsdp_size`, by default all GPUs. verl keeps its shards in the host's memory.
    from_host_s = assumed.base_bytes * shape.weights / mesh.gpus / assumed.host_rate
    return own_s + _forwards_s(shape, job, cluster, Mesh(mesh.gpus, mesh.gpus), pass_tokens, from_host_s)


def _forwards_s(
    shape: ModelShape, job: StepJob, cluster: Cluster, mesh: Mesh, pass_tokens: int, from_host_s: float = 0.0
) -> float:
    """Return the seconds of a forward pass over a GPU's rows, with weights that are sharded as `mesh` says.

    `from_host_s`: seconds in which a GPU reads its shards from the host's memory, in each pass.
    """
    gathered = job.bytes_per_weight * (shape.weights + job.adapter_weights)
    links_s = from_host_s + gather_s(gathered, shape.layers + 1, mesh, cluster.assumed)
    passes = _num_passes(job, pass_tokens, cluster.assumed)
    return overlapped_s(forward_seconds(shape, job, cluster), passes * links_s, cluster.assumed)


def _weight_sync_s(shape: ModelShape, job: StepJob, cluster: Cluster) -> float:
    """Return the seconds in which vLLM gets the new weights: gathered from the shards, then copied on each GPU.

    verl gathers each tensor by itself, in the precision of the shards. It copies float32 into a buffer, and vLLM casts
    its part while it loads. Merged adapters are cast before that, after the shards were saved in the host's memory.
    With other adapters, verl sends these alone, through the host's memory, where vLLM's weights wait during the update.
    """
    card, mesh, assumed, tensor = cluster.card, cluster.mesh, cluster.assumed, cluster.split.tensor_parallel
    if assumed.shares_weights and cluster.gpus == 1:
        return 0.0
    size = job.bytes_per_weight
    if job.lora and not job.lora_merged:
        adapters = MASTER_BYTES * job.adapter_weights
        woken_s = 2 * size * shape.weights / tensor / assumed.host_rate
        return gather_s(adapters, job.adapter_tensors, mesh, assumed) + 2 * adapters / assumed.host_rate + woken_s
    held = (assumed.base_bytes or size) if job.lora else MASTER_BYTES
    sent = BFLOAT16_BYTES if job.lora else held
    gathered_s = gather_s(held * shape.sent_weights, shape.sent_tensors, mesh, assumed)
    cast = held + sent if sent < held else 0
    copied = (cast + 2 * sent) * shape.sent_weights + (sent + size) * shape.weights / tensor
    saved_s = 2 * assumed.base_bytes * shape.weights / mesh.shards / assumed.host_rate if job.lora else 0.0
    return gathered_s + copied / card.bytes_per_s + saved_s


def bound_seconds(shape: ModelShape, job: StepJob, card: Card, gpus: int) -> float:
    """Return the seconds of the operations that every engine needs, at the full rate of all GPUs.

    These are three products per weight and token of the update (two for frozen weights), every prompt once, and one for
    each sampled token.
    """
    tokens = job.prompts * job.group_tokens
    products = 4 if job.lora else 6
    update = products * (shape.layers * shape.layer * tokens + shape.head * job.new_tokens) * job.epochs
    return update / (gpus * card.operations_per_s)
