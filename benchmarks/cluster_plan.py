"""Print the plans of docs/scale.md: computed from `egpo.plans`, in a second, on any machine. Nothing is measured.

python benchmarks/cluster_plan.py
"""

from egpo.plans.cluster_plan import ClusterPlan, assumptions_for, best_split, plan_split, possible_splits
from egpo.plans.shapes import CARDS, ModelShape, StepJob

SHAPES = {
    "0.6B": ModelShape(1024, 3072, 28, 16, 8, 128, 151_936, tied=True),
    "8B": ModelShape(4096, 12288, 36, 32, 8, 128, 151_936, tied=False),
    "32B": ModelShape(5120, 25600, 64, 64, 8, 128, 151_936, tied=False),
}
"""Qwen3's shapes."""
COUNTS = (8, 64, 1024)
CARD, MICRO_TOKENS, PROMPTS = "h200", 16_384, 64


def plan(shape: ModelShape, gpus: int, prompts: int) -> ClusterPlan:
    """Return the best plan: 16 responses of 1,024 tokens in the mean, at most 2,048, to prompts of 512 tokens."""
    job = StepJob(prompts, 16, 512, 1024, 2048, prompts * 16, gradient_checkpointing=True)
    assumed = assumptions_for(CARD, {})
    return best_split(
        [plan_split(shape, job, CARDS[CARD], one, assumed, MICRO_TOKENS) for one in possible_splits(shape, gpus)]
    )


def row(name: str, gpus: int, prompts: int) -> str:
    found = plan(SHAPES[name], gpus, prompts)
    split, seconds = found.split, found.seconds
    gib = (found.sampling.total / 2**30, found.update.total / 2**30)
    stages = (seconds.rollout_s, seconds.log_probs_s, seconds.update_s, seconds.weight_sync_s, seconds.step_s)
    cells = [
        name,
        f"{gpus:,}",
        f"{prompts:,}",
        f"{split.tensor_parallel} x {split.data_parallel}",
        *(f"{one:.1f}" for one in gib),
        *(f"{one:.1f}" for one in stages),
        f"{found.bound_s:.2f}",
    ]
    return f"| {' | '.join(cells)} |"


def table(*, growing: bool) -> list[str]:
    """Return the rows for a step of one size, or for one whose rows grow with the GPUs."""
    return [row(name, gpus, PROMPTS * (gpus // 8 if growing else 1)) for name in SHAPES for gpus in COUNTS]


if __name__ == "__main__":
    for growing in (False, True):
        print("the rows grow with the GPUs" if growing else "the same step on more GPUs")
        print("\n".join(table(growing=growing)), end="\n\n")
