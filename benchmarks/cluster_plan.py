"""Print the plans of docs/scale.md: computed from `egpo.plans`, in a second, on any machine. Nothing is measured.

python benchmarks/cluster_plan.py
"""

from collections.abc import Iterator
from dataclasses import replace

from egpo.plans.cluster_plan import ClusterPlan, best_plan, plan_split
from egpo.plans.links import assumptions_for
from egpo.plans.shapes import CARDS, ModelShape, StepJob
from egpo.plans.splits import possible_splits

SHAPES = {
    "0.6B": ModelShape(1024, 3072, 28, 16, 8, 128, 151_936, tied=True),
    "8B": ModelShape(4096, 12288, 36, 32, 8, 128, 151_936, tied=False),
    "32B": ModelShape(5120, 25600, 64, 64, 8, 128, 151_936, tied=False),
}
"""Qwen3's shapes."""
COUNTS = (8, 64, 1024)
CARD, MICRO_TOKENS, PROMPTS = "h200", 16_384, 64
SIZES, RANK = (1024, 64, 8, 1), 16
"""Sizes of the groups that share the weights on 1,024 GPUs, and the rank of adapters."""


def plan(
    shape: ModelShape, gpus: int, prompts: int, fsdp_size: int | None = None, rank: int | None = None
) -> ClusterPlan:
    """Return the best plan: 16 responses of 1,024 tokens in the mean, at most 2,048, to prompts of 512 tokens."""
    job = StepJob(prompts, 16, 512, 1024, 2048, prompts * 16, gradient_checkpointing=True)
    if rank is not None:
        made = {"adapter_weights": shape.adapter_weights(rank), "adapter_tensors": shape.adapter_tensors()}
        job = replace(job, lora=True, **made)
    assumed, card = assumptions_for(CARD, {}), CARDS[CARD]
    return best_plan(
        [plan_split(shape, job, card, one, assumed, MICRO_TOKENS, fsdp_size) for one in possible_splits(shape, gpus)]
    )


def line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def numbers(found: ClusterPlan) -> Iterator[str]:
    """Yield the cells that all tables have: the split, GiB in sampling and update, and the seconds by stage.

    A plan that does not fit has no seconds: few of its rows would be sampled at a time.
    """
    split, seconds = found.split, found.seconds
    yield f"{split.tensor_parallel} x {split.data_parallel}"
    yield from (f"{one.total / 2**30:.1f}" for one in (found.sampling, found.update))
    stages = (seconds.rollout_s, seconds.log_probs_s, seconds.update_s, seconds.weight_sync_s, seconds.step_s)
    yield from (f"{one:.1f}" if found.fits else "-" for one in stages)


def row(name: str, gpus: int, prompts: int) -> str:
    found = plan(SHAPES[name], gpus, prompts)
    return line(name, f"{gpus:,}", f"{prompts:,}", *numbers(found), f"{found.bound_s:.2f}")


def table(*, growing: bool) -> list[str]:
    """Return the rows for a step of one size, or for one whose rows grow with the GPUs."""
    return [row(name, gpus, PROMPTS * (gpus // 8 if growing else 1)) for name in SHAPES for gpus in COUNTS]


def table_of_sizes() -> list[str]:
    """Return the rows for each `fsdp_size` on 1,024 GPUs, of the step whose rows grow with the GPUs."""
    gpus = COUNTS[-1]
    plans = [(name, plan(SHAPES[name], gpus, PROMPTS * gpus // 8, size)) for name in SHAPES for size in SIZES]
    return [line(name, f"{found.fsdp_size:,}", *numbers(found)) for name, found in plans]


def table_of_adapters() -> list[str]:
    """Return the rows for adapters on eight GPUs, beside those for all weights."""
    plans = [
        (name, words, plan(SHAPES[name], COUNTS[0], PROMPTS, rank=rank))
        for name in SHAPES
        for words, rank in (("all weights", None), (f"adapters of rank {RANK}", RANK))
    ]
    return [line(name, words, *numbers(found)) for name, words, found in plans]


if __name__ == "__main__":
    for title, rows in (
        ("the same step on more GPUs", table(growing=False)),
        ("the rows grow with the GPUs", table(growing=True)),
        ("fsdp_size on 1,024 GPUs", table_of_sizes()),
        ("adapters on 8 GPUs", table_of_adapters()),
    ):
        print(title, *rows, sep="\n", end="\n\n")
