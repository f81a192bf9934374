"""What `egpo plan` says of a step on this GPU, beside what the step takes. None of these cases was used to fit it.

    python benchmarks/plan.py [--only long adapters]

Memory is what torch allocates at the peak; the plan's is without CUDA's own. Seconds are those of the second step.
"""

import argparse
import gc
from dataclasses import dataclass, field, replace

import torch
from rich.console import Console
from rich.table import Table

import _gpu_job as jobs
from egpo.local.draws import Draws
from egpo.plans.shapes import CARDS, ModelShape, StepJob
from egpo.plans.step_plan import StepPlan, plan_job
from one_gpu import Ours, Seconds, open_job


@dataclass(frozen=True)
class Case:
    """A job, what the recipe adds to it, and what that is to the plan."""

    job: jobs.Job
    sections: dict[str, dict[str, object]] = field(default_factory=dict)
    planned: dict[str, object] = field(default_factory=dict)

    def plan(self, card: str) -> StepPlan:
        job, shape = self.job, jobs.SHAPES[self.job.shape]
        numbers = ModelShape(
            shape.hidden, shape.inner, shape.layers, shape.heads, shape.keys, 128, job.vocabulary, shape.tied
        )
        mean = round(job.new_tokens / job.rows)
        step = StepJob(job.prompts, job.group, job.prompt_tokens, mean, job.longest, job.rows)
        return plan_job(numbers, replace(step, **self.planned), CARDS[card])


CASES = {
    "4B": Case(jobs.Job("4B", 384, 384, prompts=8, group=8)),
    "varied lengths": Case(jobs.Job("0.6B", 64, 1024)),
    "long": Case(jobs.Job("0.6B", 2048, 2048, prompts=4, group=16)),
    "adapters": Case(
        jobs.Job("1.7B", 512, 512, prompts=8, group=16), {"model": {"lora": {"rank": 16}}}, {"lora": True}
    ),
    "checkpointing": Case(
        jobs.Job("1.7B", 768, 768, prompts=16, group=8),
        {"model": {"gradient_checkpointing": True}},
        {"gradient_checkpointing": True},
    ),
    "reference": Case(jobs.Job("0.6B", 256, 256, prompts=32, group=8), {"update": {"kl": 0.001}}, {"reference": True}),
    "waiting rows": Case(
        jobs.Job("1.7B", 256, 256, prompts=16, group=16), {"rollout": {"rows_at_once": 64}}, {"at_once": 64}
    ),
}


def measured(case: Case) -> Seconds:
    Draws.uniforms = lambda self, keys, n, num_tokens: case.job.uniforms()
    ours = Ours(open_job(case.job, **{name: dict(values) for name, values in case.sections.items()}), case.job, "egpo")
    return [ours.run() for _ in range(2)][-1]


def row(name: str, case: Case, card: str) -> list[str]:
    plan, found = case.plan(card), measured(case)
    gib = (plan.memory.parts.total - plan.memory.parts.context) / 2**30
    stages = [(plan.time.sample_s, found["sample"]), (plan.time.update_s, found["step"] - found["sample"])]
    pairs = [*stages, (plan.time.step_s, found["step"]), (gib, found["gib"])]
    shares = [f"{planned / real - 1:+.0%}" for planned, real in pairs[2:]]
    return [name, *(f"{planned:.2f} / {real:.2f}" for planned, real in pairs), *shares]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--card", choices=CARDS, default="h200")
    parser.add_argument("--only", nargs="*", choices=CASES, default=list(CASES))
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("No CUDA device: nothing to measure.")
        return
    table = Table("planned / measured", "sample, s", "rest, s", "step, s", "GiB", "time off", "memory off")
    for name in arguments.only:
        table.add_row(*row(name, CASES[name], arguments.card))
        gc.collect()
        torch.cuda.empty_cache()
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
