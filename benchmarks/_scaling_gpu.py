"""The jobs of benchmarks/scaling.py for a GPU: 8 prompts with 8 responses of 256 tokens each for the 0.6B model, with
one property changed."""

import gc
import sys
from dataclasses import replace

import torch

import _gpu_job as jobs
import _trl_gpu_peer as trl
from _scaling_cost import Cost
from egpo.local.draws import Draws
from interleaved import Timing
from one_gpu import Limit, Turns, timing

BASE = jobs.Job("0.6B", 256, 256, prompts=8, group=8)
SWEEPS = {
    "samples": {str(group): replace(BASE, group=group) for group in (4, 8, 16, 32, 64)},
    "length": {str(tokens): replace(BASE, shortest=tokens, longest=tokens) for tokens in (128, 256, 512, 1024, 2048)},
    "model": {shape: replace(BASE, shape=shape) for shape in jobs.SHAPES},
    "vocabulary": {f"{words:,}": replace(BASE, vocabulary=words) for words in (8_192, 32_768, 151_936)},
}


def prepare() -> None:
    if not torch.cuda.is_available():
        sys.exit("No CUDA device: nothing to measure. On a CPU: --device cpu")


def cost(label: str, job: jobs.Job, num_rounds: int, with_trl: bool) -> Cost:
    gc.collect()  # TRL's trainer holds itself
    torch.cuda.empty_cache()
    Draws.uniforms = lambda self, keys, n, num_tokens: job.uniforms()
    turns, peer = Turns(job, ("egpo",), shares=with_trl), None
    if with_trl and trl.is_installed():
        peer = timing(trl.train_beside(lambda step: turns.take(), job, num_rounds + 1)[1:], "step")
    else:
        for _ in range(num_rounds + 1):
            turns.take()
    rounds = turns.seconds["egpo"][1:]
    sample, update, step, peak = (timing(rounds, stage) for stage in ("sample", "update", "step", "gib"))
    held_mib, peak_mib = torch.cuda.memory_allocated() / 2**20, peak.median_s * 1024
    limit = Limit.of(job)
    limits = Timing([limit.sample_s + limit.update_s] * len(rounds))
    return Cost(label, job.new_tokens, sample, update, step, limits, peer, peak_mib - held_mib, peak_mib)
