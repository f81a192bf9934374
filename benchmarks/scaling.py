"""How a step's cost on a GPU grows: with samples, with length, with the model, with the vocabulary.

    python benchmarks/scaling.py [--rounds 2] [--only samples length model vocabulary]

The base is the 0.6B shape of benchmarks/one_gpu.py with 8 prompts of 128 tokens, 8 responses of 256 tokens to each.
Every row changes one thing. Memory is the peak of a step; `beyond` is what it takes over weights, optimizer and cache.
"""

import argparse
import gc
from dataclasses import replace

import torch
from rich.console import Console
from rich.table import Table

import _gpu_job as jobs
from egpo.local.draws import Draws
from interleaved import Timing
from one_gpu import Limit, Ours, Seconds, open_job

BASE = jobs.Job("0.6B", 256, 256, prompts=8, group=8)
SWEEPS = {
    "samples": [replace(BASE, group=group) for group in (4, 8, 16, 32, 64)],
    "length": [replace(BASE, shortest=length, longest=length) for length in (128, 256, 512, 1024, 2048)],
    "model": [replace(BASE, shape=shape) for shape in jobs.SHAPES],
    "vocabulary": [replace(BASE, vocabulary=words) for words in (8_192, 32_768, 151_936)],
}


def measured(job: jobs.Job, num_rounds: int) -> tuple[list[Seconds], float]:
    """Seconds by stage for every round, and the GiB of weights, optimizer and cache."""
    Draws.uniforms = lambda self, keys, n, num_tokens: job.uniforms()
    run = open_job(job)
    ours = Ours(run, job, "egpo")
    rounds = [ours.run() for _ in range(num_rounds + 1)][1:]
    return rounds, torch.cuda.memory_allocated() / 2**30


def show(name: str, num_rounds: int, console: Console) -> None:
    table = Table(name, "sample, s", "update, s", "step, s", "us/token", "times the limit", "GiB", "beyond")
    for job in SWEEPS[name]:
        rounds, held = measured(job, num_rounds)
        sample_s, update_s, step_s, memory = (
            Timing([seconds[stage] for seconds in rounds]).median_s for stage in ("sample", "update", "step", "gib")
        )
        limit = Limit.of(job)
        label = {"samples": job.group, "length": job.longest, "model": job.shape, "vocabulary": job.vocabulary}[name]
        table.add_row(
            str(label), f"{sample_s:.2f}", f"{update_s:.2f}", f"{step_s:.2f}", f"{step_s / job.new_tokens * 1e6:.1f}",
            f"{step_s / (limit.sample_s + limit.update_s):.2f}", f"{memory:.1f}", f"{memory - held:.1f}",
        )  # fmt: skip
        gc.collect()
        torch.cuda.empty_cache()
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", nargs="*", choices=SWEEPS, default=list(SWEEPS))
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("No CUDA device: nothing to measure.")
        return
    for name in arguments.only:
        show(name, arguments.rounds, Console(width=120))


if __name__ == "__main__":
    main()
