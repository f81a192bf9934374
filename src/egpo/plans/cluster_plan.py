"""Estimate memory per GPU and seconds by stage of a step with verl on many GPUs, and choose the split for vLLM.

verl trains with FSDP2 over all GPUs (each holds a shard of weights, gradients and moments) and samples with vLLM on the
same GPUs: groups of `tensor_parallel` GPUs share one copy of the model, and `data_parallel` such groups share the rows.
The part of one GPU is that of `step_plan.py`, which was checked against measurements; what is added here are shards,
links between GPUs and verl's own passes. Every number of it is a field of `Assumptions`. No plan for more than one GPU
has been compared with a measurement (docs/scale.md).
"""

from dataclasses import asdict, dataclass, fields, replace

from egpo.config import Config
from egpo.errors import InputError, nearest
from egpo.plans.shapes import CARDS, Card, ModelShape, StepJob, read_shape
from egpo.plans.step_plan import Parts, plan_parts, sample_seconds, update_seconds

NODE = 8
"""GPUs per node that share fast links. A recipe with more GPUs per node is planned as several nodes of eight."""


@dataclass(frozen=True)
class Assumptions:
    """The numbers of a plan that were not measured on the machine it is for. `egpo plan --assume NAME=VALUE` sets them.

    Rates of links are bytes per second and GPU, in one direction.
    """

    node_gpus: int = NODE
    """GPUs of a node."""
    node_bytes_per_s: float = 450e9
    """Link between GPUs of a node: NVLink 4, as the vendor states it."""
    network_bytes_per_s: float = 50e9
    """Link between nodes: 400 Gbit/s for each GPU."""
    link_share: float = 0.8
    """Fraction of a link's rate that a large collective reaches."""
    hop_s: float = 4e-6
    """Seconds of one hop in a ring of GPUs."""
    reduce_s: float = 15e-6
    """Seconds of one small all-reduce within a node, as in each layer of a token with tensor parallelism."""
    overlap: float = 0.8
    """Fraction of the shorter of computing and communicating that is hidden behind the longer one, in FSDP."""
    rollout_factor: float = 1.6
    """Seconds of vLLM for each second of the embedded sampler: 1.4 to 1.8 on one H200."""
    shared_prompts: float = 0
    """1: the responses of a group share the prompt in a pass, as in the embedded engine. 0: each row has its own."""
    padding: float = 1.0
    """Tokens of a pass, with padding, for each real token: 1 with flash-attn or `egpo_packed`."""
    overhead_s: float = 12.0
    """Seconds of a step beside its work: Ray, waiting, sleep, wake. egpo-tiny on one H200 took 11 to 14 s in all."""
    log_probs: float = 1
    """Passes for log-probabilities before the update, beside the reference's."""

    def link(self, gpus: int) -> float:
        """Return the rate of a ring over so many GPUs, in bytes per second: that of its slowest link."""
        inside = gpus <= self.node_gpus
        return self.link_share * (self.node_bytes_per_s if inside else self.network_bytes_per_s)


LIKE_EMBEDDED = Assumptions(rollout_factor=1.0, shared_prompts=1, overhead_s=0.0, log_probs=0)
"""With one GPU, the plan under these assumptions is that of the embedded engine."""
LINKS = {"a100": (300e9, 25e9), "rtx4090": (25e9, 12.5e9)}
"""Rates of other GPUs' links where they differ: NVLink 3 and 200 Gbit/s; PCIe 4 and 100 Gbit/s."""


def assumptions_for(card: str, given: dict[str, float]) -> Assumptions:
    """Return the assumptions for a GPU, with those that the user sets."""
    node, network = LINKS.get(card, (Assumptions.node_bytes_per_s, Assumptions.network_bytes_per_s))
    names = {field.name for field in fields(Assumptions)}
    for name, value in given.items():
        if name not in names:
            raise InputError(f"no assumption is called `{name}`", where="--assume", fix=nearest(name, names))
        rates = ("node_bytes_per_s", "network_bytes_per_s", "link_share", "node_gpus", "rollout_factor", "padding")
        if value < 0 or (name in rates and value == 0) or (name in ("link_share", "overlap") and value > 1):
            fix = "give a positive number; fractions are at most 1"
            raise InputError(f"`{name}` cannot be {value:g}", where="--assume", fix=fix)
    numbers = {name: int(value) if name == "node_gpus" else value for name, value in given.items()}
    return replace(Assumptions(node_bytes_per_s=node, network_bytes_per_s=network), **numbers)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Split:
    """How vLLM uses the GPUs: `data_parallel` copies of the model, each on `tensor_parallel` GPUs."""

    tensor_parallel: int
    data_parallel: int

    @property
    def gpus(self) -> int:
        return self.tensor_parallel * self.data_parallel


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


@dataclass(frozen=True)
class ClusterPlan:
    """A step on `split.gpus` GPUs. `sampling` and `update` are the memory of one GPU in these stages."""

    split: Split
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


def part_of(job: StepJob, parts: int, *, shared: bool = True) -> StepJob:
    """Return the largest share of a step's rows if it is divided into so many parts: whole groups as far as possible.

    `shared=False`: every row has a prompt of its own.
    """
    rows = -(-job.rows // parts)
    if shared and parts <= job.prompts:
        prompts = -(-job.prompts // parts)
        return replace(job, prompts=prompts, at_once=min(job.at_once, prompts * job.group))
    if shared:
        return replace(job, prompts=1, group=rows, at_once=min(job.at_once, rows))
    return replace(job, prompts=rows, group=1, at_once=min(job.at_once, rows))


def possible_splits(shape: ModelShape, gpus: int, node_gpus: int = NODE) -> list[Split]:
    """Return the splits whose groups lie within a node and divide GPUs and heads, the smallest groups first."""
    return [
        Split(size, gpus // size)
        for size in range(1, min(gpus, node_gpus) + 1)
        if gpus % size == 0 and not split_fault(shape, gpus, size, node_gpus)
    ]


def split_fault(shape: ModelShape, gpus: int, size: int, node_gpus: int = NODE) -> str:
    """Return why the model cannot be sampled in groups of `size` GPUs; empty if it can."""
    if size > gpus:
        return f"{size} tensor-parallel ranks are more than {gpus} GPUs"
    if gpus % size:
        return f"{gpus} GPUs cannot be divided into groups of {size}"
    if shape.queries % size or (shape.keys % size and size % shape.keys):
        return f"{shape.queries} query heads and {shape.keys} key-value heads cannot be divided among {size} GPUs"
    if size > node_gpus:
        return f"a group of {size} GPUs does not fit into a node of {node_gpus}"
    return ""


def plan_split(
    shape: ModelShape,
    job: StepJob,
    card: Card,
    split: Split,
    assumed: Assumptions | None = None,
    micro_tokens: int | None = None,
) -> ClusterPlan:
    """Plan a step with this split."""
    assumed = assumed or Assumptions()
    require_divisible(shape, job, split, assumed)
    whole = plan_parts(shape, job, card, micro_tokens)
    on_gpu = part_of(job, split.gpus, shared=bool(assumed.shared_prompts))
    tokens = int(assumed.padding * on_gpu.prompts * on_gpu.group_tokens)
    pass_tokens = whole.pass_tokens if split.gpus == 1 else min(whole.pass_tokens, tokens)
    update = _update_parts(shape, job, whole.parts, split, pass_tokens)
    sampling, at_once = _sampling_parts(shape, job, card, whole.parts, split)
    if split.gpus == 1 and assumed == LIKE_EMBEDDED:
        at_once = min(at_once, whole.at_once)
    sampled = replace(part_of(job, split.data_parallel), at_once=at_once)
    seconds = StageSeconds(
        rollout_s=_rollout_s(shape, sampled, card, split, assumed),
        log_probs_s=_log_probs_s(shape, on_gpu, card, split, assumed, pass_tokens),
        update_s=_update_s(shape, on_gpu, card, split, assumed, pass_tokens),
        weight_sync_s=_weight_sync_s(shape, job, card, split, assumed),
        overhead_s=assumed.overhead_s,
    )
    return ClusterPlan(
        split, card, sampling, update, at_once, pass_tokens, seconds, bound_seconds(shape, job, card, split)
    )


def require_divisible(shape: ModelShape, job: StepJob, split: Split, assumed: Assumptions) -> None:
    if job.lora:
        fix = "plan without adapters, or for one GPU with engine=local"
        raise InputError("plans for verl do not cover adapters", where="model.lora", fix=fix)
    _require_split(shape, split.gpus, split.tensor_parallel, assumed)
    if job.rows % split.gpus:
        fix = "choose rollout.prompts and rollout.n so that the GPUs get equal parts"
        raise InputError(f"{job.rows} responses cannot be divided among {split.gpus} GPUs", where="verl.gpus", fix=fix)


def _require_split(shape: ModelShape, gpus: int, size: int, assumed: Assumptions) -> None:
    if fault := split_fault(shape, gpus, size, assumed.node_gpus):
        sizes = ", ".join(str(one.tensor_parallel) for one in possible_splits(shape, gpus, assumed.node_gpus))
        raise InputError(fault, where="verl.tensor_parallel", fix=f"choose one of {sizes}")


def _update_parts(shape: ModelShape, job: StepJob, whole: Parts, split: Split, pass_tokens: int) -> Parts:
    """Return the memory of a GPU in the update: shards, and the two units that FSDP gathers at a time."""
    size, gpus = job.bytes_per_weight, split.gpus
    gathered = 2.0 * size * max(shape.layer, shape.head) + size * shape.weights / gpus
    per_token = size * shape.kept_numbers(job.gradient_checkpointing)
    return replace(
        whole,
        weights=whole.weights
        if gpus == 1
        else min(whole.weights, gathered + (size * shape.weights / gpus if job.reference else 0)),
        optimizer=whole.optimizer / gpus,
        gradients=whole.gradients / gpus,
        cache=0.0,
        activations=pass_tokens * per_token,
        logits=whole.logits - 10.0 * shape.hidden * (whole.activations / per_token - pass_tokens),
    )


def _sampling_parts(shape: ModelShape, job: StepJob, card: Card, whole: Parts, split: Split) -> tuple[Parts, int]:
    """Return the memory of a GPU while vLLM samples, and how many rows of a copy fit into its cache at a time."""
    size, tensor = job.bytes_per_weight, split.tensor_parallel
    rows = part_of(job, split.data_parallel)
    heads = min(tensor, shape.keys)  # with more ranks than key-value heads, each rank has a copy of one
    per_row = size * shape.cached_numbers / heads * job.longest + 8.0 * shape.vocabulary / tensor
    reference = size * shape.weights if job.reference else 0
    fixed = replace(
        whole,
        weights=(whole.weights - reference) / tensor + reference / split.gpus,
        optimizer=whole.optimizer / split.gpus,
        gradients=0.0,
        cache=size * shape.cached_numbers / heads * rows.prompts * job.prompt_tokens,
        activations=0.0,
        logits=0.0,
    )
    room = max(0.0, 0.97 * card.bytes - fixed.total)
    at_once = max(1, min(rows.at_once, int(room / per_row)))
    cache = fixed.cache + at_once * (per_row - 8.0 * shape.vocabulary / tensor)
    return replace(fixed, cache=cache, logits=8.0 * at_once * shape.vocabulary / tensor), at_once


def _rollout_s(shape: ModelShape, job: StepJob, card: Card, split: Split, assumed: Assumptions) -> float:
    """Return the seconds of sampling: a copy reads its shards in parallel, and reduces twice in each layer."""
    tensor = split.tensor_parallel
    faster = replace(card, bytes_per_s=card.bytes_per_s * tensor)
    alone = assumed.rollout_factor * sample_seconds(shape, job, faster)
    if tensor == 1:
        return alone
    steps = job.longest + (-(-job.rows // job.at_once) - 1) * job.response_tokens
    moved = 2 * (tensor - 1) / tensor * job.bytes_per_weight * job.at_once * shape.hidden
    return alone + steps * 2 * shape.layers * (assumed.reduce_s + moved / assumed.link(tensor))


def _gather_s(bytes_whole: float, units: int, gpus: int, assumed: Assumptions) -> float:
    """Return the seconds of gathering (or reducing and scattering) shards of so many bytes, in `units` collectives."""
    if gpus == 1:
        return 0.0
    return bytes_whole * (gpus - 1) / gpus / assumed.link(gpus) + units * (gpus - 1) * assumed.hop_s


def _overlapped(compute_s: float, links_s: float, assumed: Assumptions) -> float:
    return max(compute_s, links_s) + (1 - assumed.overlap) * min(compute_s, links_s)


def _num_passes(job: StepJob, pass_tokens: int, assumed: Assumptions) -> int:
    return max(1, -(-int(assumed.padding * job.prompts * job.group_tokens) // max(1, pass_tokens)))


def _update_s(
    shape: ModelShape, job: StepJob, card: Card, split: Split, assumed: Assumptions, pass_tokens: int
) -> float:
    """Return the seconds of the update: each pass gathers the weights twice and scatters the gradients in float32."""
    compute_s = assumed.padding * update_seconds(shape, replace(job, reference=False), card)
    once = 2 * job.bytes_per_weight * shape.weights + 4 * shape.weights
    links_s = _gather_s(once, 3 * (shape.layers + 1), split.gpus, assumed)
    passes = job.epochs * _num_passes(job, pass_tokens, assumed)
    shared = forward_seconds(shape, job, card, assumed) if job.reference and assumed.log_probs == 0 else 0.0
    return _overlapped(compute_s, passes * links_s, assumed) + shared


def forward_seconds(shape: ModelShape, job: StepJob, card: Card, assumed: Assumptions) -> float:
    """Return the seconds of one forward pass over the rows of a GPU."""
    with_reference, without = (update_seconds(shape, replace(job, reference=one), card) for one in (True, False))
    return assumed.padding * (with_reference - without)


def _log_probs_s(
    shape: ModelShape, job: StepJob, card: Card, split: Split, assumed: Assumptions, pass_tokens: int
) -> float:
    """Return the seconds of the passes before the update: the policy's own, and the reference's if there is one."""
    if assumed.log_probs == 0:
        return 0.0
    forwards = assumed.log_probs + (1 if job.reference else 0)
    links_s = _gather_s(job.bytes_per_weight * shape.weights, shape.layers + 1, split.gpus, assumed)
    passes = _num_passes(job, pass_tokens, assumed)
    return forwards * _overlapped(forward_seconds(shape, job, card, assumed), passes * links_s, assumed)


def _weight_sync_s(shape: ModelShape, job: StepJob, card: Card, split: Split, assumed: Assumptions) -> float:
    """Return the seconds in which vLLM gets the new weights: gathered from the shards, then copied on each GPU."""
    if assumed == LIKE_EMBEDDED and split.gpus == 1:
        return 0.0
    weights = job.bytes_per_weight * shape.weights
    return _gather_s(weights, shape.layers + 1, split.gpus, assumed) + 2 * weights / card.bytes_per_s


def bound_seconds(shape: ModelShape, job: StepJob, card: Card, split: Split) -> float:
    """Return the seconds of the operations that every engine needs, at the full rate of all GPUs.

    These are three products per weight and token of the update, every prompt once, and one for each sampled token.
    """
    tokens = job.prompts * job.group_tokens
    update = 6 * (shape.layers * shape.layer * tokens + shape.head * job.new_tokens) * job.epochs
    return update / (split.gpus * card.operations_per_s)


MICRO_TOKENS = 16_384
"""Tokens of a pass where the recipe sets none, as the launcher of verl sets them."""


def plan_cluster(
    config: Config,
    card: str,
    prompt_tokens: int | None = None,
    response_tokens: int | None = None,
    assumed: Assumptions | None = None,
) -> list[ClusterPlan]:
    """Plan a step of a recipe with verl for each possible split, or for the one that the recipe sets."""
    if card not in CARDS:
        raise InputError(f"unknown GPU `{card}`", where="--card", fix=f"choose from {', '.join(CARDS)}")
    if config.verl.device == "cpu":
        raise InputError("the recipe trains on a CPU", where="verl.device", fix="a plan is for GPUs: leave it out")
    assumed = assumed or assumptions_for(card, {})
    shape, job = read_shape(config.model.path), StepJob.of(config, prompt_tokens, response_tokens)
    # Every group of GPUs samples all of its rows that fit: vLLM has no limit per step of its own here.
    job = replace(job, at_once=job.rows if config.rollout.rows_at_once is None else job.at_once)
    longest = job.prompt_tokens + job.longest
    micro = max(config.update.micro_tokens or MICRO_TOKENS, longest)
    gpus, chosen = config.verl.ranks, config.verl.tensor_parallel
    splits = possible_splits(shape, gpus, assumed.node_gpus)
    if chosen is not None:
        _require_split(shape, gpus, chosen, assumed)
        splits = [Split(chosen, gpus // chosen)]
    return [plan_split(shape, job, CARDS[card], split, assumed, micro) for split in splits]


def best_split(plans: list[ClusterPlan]) -> ClusterPlan:
    """Return the fastest plan that fits; if none fits, the one that needs the least memory."""
    fitting = [plan for plan in plans if plan.fits]
    if fitting:
        return min(fitting, key=lambda plan: plan.seconds.step_s)
    return min(plans, key=lambda plan: plan.peak_bytes)
