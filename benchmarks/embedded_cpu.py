"""One GRPO step of the embedded engine on two cores: against TRL's GRPOTrainer, against its own arithmetic, and EGPO
against GRPO. All of them in one process, in turn, round after round.

    .venv/bin/pip install --no-deps --target .env-trl -r environments/trl/requirements.txt
    .venv/bin/python benchmarks/embedded_cpu.py [--rounds 7]

The job: a Qwen3 shape of 2.8 million parameters in float32, 16 prompts of 48 tokens, 8 responses to each of exactly 96
tokens, one optimizer step over all of them. The limit is the products with the weights and nothing else, run here: one
token a row at a time for the responses, every prompt once; then forward, gradient of the input and gradient of the
weight over all tokens, every prompt once. It leaves out attention, norms, the softmax and the optimizer. Without TRL's
packages ours is measured alone.
"""

import argparse
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.functional import linear

import _embedded_job as job
import _trl_peer as trl
from egpo.config import Config
from egpo.local.run import Run, open_run
from egpo.local.stages import Stages
from egpo.local.step import step
from interleaved import Timing

CORES = 2
MICRO_TOKENS = 2048  # of one pass, as the engine takes them on a CPU
Seconds = dict[str, float]


def open_job(folder: str) -> Run:
    config = Config.model_validate(
        {
            "model": {"path": folder, "device": "cpu"},
            "task": {"name": "_embedded_job:Words"},
            "rollout": {"prompts": job.PROMPTS, "n": job.GROUP, "max_response_tokens": job.NEW_TOKENS},
        }
    )
    run = open_run(config)
    # The end token is a word like any other here: responses have one exact length.
    return replace(run, policy=replace(run.policy, stop_ids=frozenset({len(job.VOCABULARY)})))


class Products:
    """The limit: every product with a weight that the job cannot do without."""

    def __init__(self, run: Run) -> None:
        model = run.policy.model
        self._weights = [layer.weight.detach() for layer in model.modules() if isinstance(layer, torch.nn.Linear)]
        self._num_tokens = job.PROMPTS * (job.PROMPT_TOKENS + job.GROUP * (job.NEW_TOKENS - 1))
        sizes = {size for weight in self._weights for size in weight.shape}
        self._inputs = {size: torch.randn(MICRO_TOKENS, size) for size in sizes}

    def run(self) -> Seconds:
        start = time.perf_counter()
        for num_rows in (job.PROMPTS * job.PROMPT_TOKENS, *[job.ROWS] * (job.NEW_TOKENS - 1)):
            for weight in self._weights:
                linear(self._inputs[weight.shape[1]][:num_rows], weight)
        middle = time.perf_counter()
        for first in range(0, self._num_tokens, MICRO_TOKENS):
            for weight in self._weights:
                self._forward_and_backward(weight, min(MICRO_TOKENS, self._num_tokens - first))
        end = time.perf_counter()
        return {"step": end - start, "sample": middle - start, "update": end - middle}

    def _forward_and_backward(self, weight: Tensor, num_tokens: int) -> None:
        num_out, num_in = weight.shape
        tokens, gradient = self._inputs[num_in][:num_tokens], self._inputs[num_out][:num_tokens]
        linear(tokens, weight)
        torch.mm(gradient, weight)
        torch.mm(gradient.t(), tokens)


class Ours:
    """The engine's own step under one estimator, with the seconds of its stages. The policy is the run's."""

    def __init__(self, run: Run, estimator: str) -> None:
        algorithm = run.config.algorithm.model_copy(update={"estimator": estimator})
        self._run = replace(run, config=run.config.model_copy(update={"algorithm": algorithm}), stages=Stages())
        self._number = 0

    def run(self) -> Seconds:
        start = time.perf_counter()
        outcome = step(self._run, self._number)
        seconds = {"step": time.perf_counter() - start, **self._run.stages.take()}
        assert outcome.metrics["response_length/min"] == job.NEW_TOKENS
        self._number += 1
        return seconds


def measure(num_rounds: int, micro_rows: int) -> dict[str, list[Seconds]]:
    """Seconds by stage for every contender and round."""
    with TemporaryDirectory() as folder:
        job.save(Path(folder))
        run = open_job(folder)
    contenders = {"limit": Products(run), "grpo": Ours(run, "grpo"), "egpo": Ours(run, "egpo")}
    seconds: dict[str, list[Seconds]] = {name: [] for name in contenders}
    order = list(contenders)

    def take_turns() -> None:
        for name in order:
            seconds[name].append(contenders[name].run())
        order.reverse()  # who comes after whom must not matter

    if trl.is_installed():
        seconds["TRL"] = trl.train_beside(take_turns, num_rounds + 1, micro_rows)
        for step_seconds in seconds["TRL"]:
            step_seconds["update"] = step_seconds["step"] - step_seconds["sample"]
    else:
        for _ in range(num_rounds + 1):
            take_turns()
    return {name: rounds[1:] for name, rounds in seconds.items()}


def timing(rounds: list[Seconds], stage: str) -> Timing:
    return Timing([seconds[stage] for seconds in rounds])


def show(seconds: dict[str, list[Seconds]], console: Console) -> None:
    table = Table("", "sample, s", "update, s", "step, s", "tokens/s", "times the limit", "TRL takes, times")
    limit = timing(seconds["limit"], "step")
    for name, rounds in seconds.items():
        whole = timing(rounds, "step")
        stages = [f"{timing(rounds, stage).median_s:.2f}" for stage in ("sample", "update", "step")]
        against = str(timing(seconds["TRL"], "step").over(whole)) if "TRL" in seconds else ""
        rate = f"{job.ROWS * job.NEW_TOKENS / whole.median_s:,.0f}"
        table.add_row(name, *stages, rate, str(whole.over(limit)), against)
    console.print(table)
    grpo, egpo = (timing(seconds[name], "step") for name in ("grpo", "egpo"))
    console.print(f"An EGPO step takes {egpo.over(grpo)} times a GRPO step.")
    measured = timing(seconds["egpo"], "measure").over(egpo)
    console.print(f"All that tells them apart, segments and estimator, is {measured.median:.2%} of it.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--trl-micro-rows", type=int, default=trl.MICRO_ROWS, help="rows in one of TRL's micro-batches")
    parser.add_argument(
        "--processor-time", action="store_true", help="of one core, in place of the clock: on a machine that others use"
    )
    arguments = parser.parse_args()
    if "GOMP_SPINCOUNT" not in os.environ:  # read when torch is loaded; as the command line sets it, for everybody here
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {"GOMP_SPINCOUNT": "3000"})
    if arguments.processor_time:
        time.perf_counter = time.process_time  # everybody's clock, TRL's and that of our own stages too
    cores = 1 if arguments.processor_time else CORES
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    torch.set_num_threads(cores)
    console = Console(width=140)
    if not trl.is_installed():
        console.print("TRL is not here, so ours stands alone. To have it: make .env-trl/.ready")
    show(measure(arguments.rounds, arguments.trl_micro_rows), console)


if __name__ == "__main__":
    main()
