"""Compare `egpo plan` with a measured step on this GPU. None of these cases was used to fit the plan's constants.

    python benchmarks/plan.py [--only long adapters]    the embedded engine
    python benchmarks/plan.py --verl [--only ...]       verl on one GPU, by `egpo train`; minutes for each case

Memory is torch's peak allocation, under verl the trainer's; the plan's figure excludes CUDA's own memory. Seconds are
those of the second step, under verl the mean of the steps after the first.
"""

import argparse
import gc
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

import torch
from rich.console import Console
from rich.table import Table

import _gpu_job as jobs
import _verl_gpu_peer as verl_peer
from egpo.local.draws import Draws
from egpo.plans.cluster_plan import ClusterPlan, plan_split
from egpo.plans.links import assumptions_for
from egpo.plans.shapes import CARDS, ModelShape, StepJob
from egpo.plans.splits import Split
from egpo.plans.step_plan import StepPlan, plan_job
from one_gpu import Ours, Seconds, open_job


@dataclass(frozen=True)
class Case:
    """A job, the settings of the recipe, and the corresponding settings of the plan."""

    job: jobs.Job
    sections: dict[str, dict[str, object]] = field(default_factory=dict)
    planned: dict[str, object] = field(default_factory=dict)

    def plan(self, card: str) -> StepPlan:
        return plan_job(_shape(self.job), replace(_step(self.job), **self.planned), CARDS[card])


def _shape(job: jobs.Job) -> ModelShape:
    shape = jobs.SHAPES[job.shape]
    return ModelShape(shape.hidden, shape.inner, shape.layers, shape.heads, shape.keys, 128, job.vocabulary, shape.tied)


def _step(job: jobs.Job) -> StepJob:
    mean = round(job.new_tokens / job.rows)
    return StepJob(job.prompts, job.group, job.prompt_tokens, mean, job.longest, job.rows)


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
    return _cells(name, [*stages, (plan.time.step_s, found["step"]), (gib, found["gib"])])


VERL_CASES = {
    "verl, 0.6B": jobs.Job("0.6B", 512, 512),
    "verl, 1.7B": jobs.Job("1.7B", 384, 384, prompts=16, group=8),
}
VERL_STEPS, VERL_ROWS = 4, 32
"""Steps of each run, and rows of a pass of verl's trainer."""


def verl_plan(job: jobs.Job, card: str) -> ClusterPlan:
    micro = VERL_ROWS * (job.prompt_tokens + job.longest)
    return plan_split(_shape(job), _step(job), CARDS[card], Split(1, 1), assumptions_for(card, {}), micro)


def verl_measured(job: jobs.Job) -> dict[str, float]:
    """Return the mean seconds of each stage after the first step, and the trainer's peak of memory in GiB."""
    with TemporaryDirectory() as folder:
        weights, launch = Path(folder) / "weights", Path(folder) / "launch"
        launch.mkdir()
        model = jobs.make_model(job)
        jobs.save_with_weights(job, model, weights)
        del model
        gc.collect()
        torch.cuda.empty_cache()  # verl's processes need the memory
        steps = list(verl_peer.train(job, weights, launch, VERL_STEPS, VERL_ROWS))[1:]
    stages = ("rollout", "update", "step")
    return {**{stage: fmean(step[stage] for step in steps) for stage in stages}, "gib": max(s["gib"] for s in steps)}


def verl_row(name: str, card: str) -> list[str]:
    job = VERL_CASES[name]
    plan, found = verl_plan(job, card), verl_measured(job)
    rollout_s = plan.seconds.rollout_s + plan.seconds.weight_sync_s
    gib = (plan.update.total - plan.update.context) / 2**30
    step_s = plan.seconds.step_s
    pairs = [(rollout_s, found["rollout"]), (step_s - rollout_s, found["step"] - found["rollout"])]
    pairs += [(step_s, found["step"]), (gib, found["gib"])]
    return _cells(name, pairs)


def _cells(name: str, pairs: list[tuple[float, float]]) -> list[str]:
    shares = [f"{planned / real - 1:+.0%}" for planned, real in pairs[2:]]
    return [name, *(f"{planned:.2f} / {real:.2f}" for planned, real in pairs), *shares]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--card", choices=CARDS, default="h200")
    parser.add_argument("--verl", action="store_true", help="verl on one GPU, beside `egpo plan engine=verl`")
    parser.add_argument("--only", nargs="*", choices=[*CASES, *VERL_CASES], default=[])
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("No CUDA device: nothing to measure.")
        return
    table = Table("planned / measured", "sample, s", "rest, s", "step, s", "GiB", "time off", "memory off")
    for cells in _rows(arguments.only or list(VERL_CASES if arguments.verl else CASES), arguments.card):
        table.add_row(*cells)
    Console(width=120).print(table)


def _rows(names: list[str], card: str) -> Iterator[list[str]]:
    for name in names:
        yield verl_row(name, card) if name in VERL_CASES else row(name, CASES[name], card)
        gc.collect()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
