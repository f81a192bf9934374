"""One GRPO step of the embedded engine on two cores: against TRL's GRPOTrainer, against its own arithmetic, and EGPO
against GRPO. All of them in one process, in turn, round after round.

    .venv/bin/pip install --no-deps --target .env-trl -r environments/trl/requirements.txt
    .venv/bin/python benchmarks/embedded_cpu.py [--rounds 7]

The job: a Qwen3 shape of 2.8 million parameters in float32, 16 prompts of 48 tokens, 8 responses to each of exactly 96
tokens, one optimizer step over all of them. Every step of ours begins at the same weights and draws the same tokens as
the others of its round, and GRPO runs twice: between the two lies what the measurement itself adds. The limits are in
_embedded_limit.py; all leave out norms, softmax and optimizer. Without TRL's packages ours is measured alone.
"""

import argparse
import os
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from rich.console import Console
from rich.table import Table

import _embedded_job as job
import _trl_peer as trl
from _embedded_limit import Products, Seconds
from egpo.config import Config
from egpo.local.run import Run, open_run
from egpo.local.stages import Stages
from egpo.local.step import step
from interleaved import Ratio, Timing

CORES = 2
AGAIN = "grpo, again"


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


class Start:
    """Weights, optimizer and order of problems after a first step: where every step that is measured begins."""

    def __init__(self, run: Run) -> None:
        step(run, 0)
        self._run, self._position = run, run.stream.position
        self._weights = [weight.detach().clone() for weight in run.policy.model.parameters()]
        self._optimizer = {name: tensor.clone() for name, tensor in run.optimizer.state().items()}

    @torch.no_grad()
    def restore(self) -> None:
        for weight, known in zip(self._run.policy.model.parameters(), self._weights, strict=True):
            weight.copy_(known)
        self._run.optimizer.load_state(self._optimizer)
        self._run.stream.position = self._position


class Ours:
    """The engine's own step under one estimator, with the seconds of its stages. The policy is the run's."""

    def __init__(self, run: Run, start: Start, estimator: str) -> None:
        algorithm = run.config.algorithm.model_copy(update={"estimator": estimator})
        self._run = replace(run, config=run.config.model_copy(update={"algorithm": algorithm}), stages=Stages())
        self._start, self._number = start, 0

    def run(self) -> Seconds:
        self._start.restore()
        self._number += 1
        start = time.perf_counter()
        outcome = step(self._run, self._number)
        seconds = {"step": time.perf_counter() - start, **self._run.stages.take()}
        assert outcome.metrics["response_length/min"] == job.NEW_TOKENS
        return seconds


def measure(num_rounds: int, micro_rows: int) -> tuple[dict[str, list[Seconds]], Products]:
    """Seconds by stage for every contender and round."""
    with TemporaryDirectory() as folder:
        job.save(Path(folder))
        run = open_job(folder)
    start, products = Start(run), Products(run)
    ours = {name: Ours(run, start, name.split(",")[0]) for name in ("grpo", "egpo", AGAIN)}
    contenders = {"limit": products, **ours}
    seconds: dict[str, list[Seconds]] = {name: [] for name in contenders}
    order = list(contenders)

    def take_turns() -> None:
        for name in order:
            seconds[name].append(contenders[name].run())
        order.append(order.pop(0))  # who comes after whom must not matter

    if trl.is_installed():
        seconds["TRL"] = trl.train_beside(take_turns, num_rounds + 1, micro_rows)
        for step_seconds in seconds["TRL"]:
            step_seconds["update"] = step_seconds["step"] - step_seconds["sample"]
    else:
        for _ in range(num_rounds + 1):
            take_turns()
    return {name: rounds[1:] for name, rounds in seconds.items()}, products


def timing(rounds: list[Seconds], stage: str) -> Timing:
    return Timing([seconds[stage] for seconds in rounds])


def show(seconds: dict[str, list[Seconds]], products: Products, console: Console) -> None:
    seconds = {"limit": seconds["limit"], "with attention": products.with_attention(seconds["limit"]), **seconds}
    table = Table("", "sample, s", "update, s", "step, s", "tokens/s", "times the limit", "with attention", "TRL takes")
    limits = [timing(seconds[name], "step") for name in ("limit", "with attention")]
    for name, rounds in seconds.items():
        whole = timing(rounds, "step")
        stages = [f"{timing(rounds, stage).median_s:.2f}" for stage in ("sample", "update", "step")]
        against = str(timing(seconds["TRL"], "step").over(whole)) if "TRL" in seconds else ""
        rate = f"{job.ROWS * job.NEW_TOKENS / whole.median_s:,.0f}"
        table.add_row(name, *stages, rate, *(str(whole.over(limit)) for limit in limits), against)
    console.print(table)
    strictest, grpo = products.at_the_highest_rate(), timing(seconds["grpo"], "step")
    console.print(
        f"At the highest rate of any product here, {max(products.rates) / 1e9:.0f} GFLOP/s, weights and attention take "
        f"{strictest['step']:.2f} s: a GRPO step is {grpo.median_s / strictest['step']:.2f} times that."
    )
    compare_estimators(seconds, console)


def precise(ratio: Ratio) -> str:
    low, middle, high = statistics.quantiles(ratio.values, n=4) if len(ratio.values) > 1 else ratio.values * 3
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


def compare_estimators(seconds: dict[str, list[Seconds]], console: Console) -> None:
    """Against the mean of the two GRPO steps of a round."""
    grpo, egpo, again = (timing(seconds[name], "step") for name in ("grpo", "egpo", AGAIN))
    mean = Timing([sum(pair) / 2 for pair in zip(grpo.seconds, again.seconds, strict=True)])
    own = timing(seconds["egpo"], "measure").over(egpo)
    console.print(
        f"An EGPO step takes {precise(egpo.over(mean))} times a GRPO step; one of the two GRPO steps takes "
        f"{precise(again.over(grpo))} times the other. Segments and estimator are {own.median:.2%} of a step."
    )


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
    show(*measure(arguments.rounds, arguments.trl_micro_rows), console)


if __name__ == "__main__":
    main()
