"""Time one GRPO step of the embedded engine on two cores: against TRL's GRPOTrainer, against its own arithmetic, and
EGPO against GRPO. All contenders run in one process, in turn, round after round.

    make .env-trl/.ready
    .venv/bin/python benchmarks/embedded_cpu.py [--rounds 7]

The job: a Qwen3 shape of 2.8 million parameters in float32, 16 prompts of 48 tokens, 8 responses of exactly 96 tokens
to each, one optimizer step over all of them. Every step of ours begins with the same weights and samples the same
tokens as the others of its round. GRPO runs twice: the difference is the error of the measurement. The limits are in
_embedded_limit.py; they leave out norms, softmax and optimizer. Without TRL's packages only ours is measured. Memory is
the peak of a step over what is held before it (weights, optimizer), measured in a round of its own.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from rich.console import Console
from rich.table import Table

import _trl_peer as trl
from _embedded_job import Job
from _embedded_limit import Products, Seconds
from _process_memory import PeakMemory
from egpo.config import Config
from egpo.local.run import Run, Stages, open_run
from egpo.local.step import step
from interleaved import Ratio, Timing

JOB = Job()
CORES = 2
AGAIN = "grpo, again"


def open_job(job: Job) -> Run:
    with TemporaryDirectory() as folder:
        job.save(Path(folder))
        config = Config.model_validate(
            {
                "model": {"path": folder, "device": "cpu"},
                "task": {"name": "_words:Words", "settings": {"texts": job.texts()}},
                "rollout": {"prompts": job.prompts, "n": job.group, "max_response_tokens": job.new_tokens},
            }
        )
        run = open_run(config)
    # The end token does not end a response here: all responses have one length.
    return replace(run, policy=replace(run.policy, stop_ids=frozenset({job.vocabulary})))


class Start:
    """The state in which every measured step begins: weights, optimizer and order of problems after a first step."""

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
    """The training step of egpo with one estimator, on the policy of the run, with the seconds of its stages."""

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
        assert outcome.metrics["response_length/min"] == self._run.config.rollout.max_response_tokens
        return seconds


class Turns:
    """The steps of all contenders except TRL, one after the other. The last of `num_turns` turns measures memory."""

    def __init__(self, job: Job, estimators: Sequence[str], num_turns: int) -> None:
        run = open_job(job)
        start, self.products = Start(run), Products(run, job)
        ours = {name: Ours(run, start, name.split(",")[0]) for name in estimators}
        self._contenders, self._num_turns = {"limit": self.products, **ours}, num_turns
        self._order = list(self._contenders)
        self.seconds: dict[str, list[Seconds]] = {name: [] for name in self._order}

    def take(self) -> None:
        for name in self._order:
            rounds = self.seconds[name]
            memory = PeakMemory() if len(rounds) == self._num_turns - 1 else None
            rounds.append(self._contenders[name].run())
            if memory is not None:
                rounds[-1] |= memory.taken()
        self._order.append(self._order.pop(0))  # rotate the order, so that it does not affect the result


@dataclass(frozen=True)
class Measured:
    """Seconds by stage for every contender and round, and MiB of one further round."""

    seconds: dict[str, list[Seconds]]
    mebibytes: dict[str, dict[str, float]]
    products: Products


def measure(job: Job, num_rounds: int, micro_rows: int | None, estimators: Sequence[str]) -> Measured:
    """Measure all contenders. TRL's micro-batches have `micro_rows` rows; None leaves TRL out."""
    num_turns = num_rounds + 2  # plus a warm-up before and a round for memory after
    turns = Turns(job, estimators, num_turns)
    seconds = turns.seconds
    if micro_rows:
        seconds = seconds | {"TRL": trl.train_beside(turns.take, job, num_turns, micro_rows)}
    else:
        for _ in range(num_turns):
            turns.take()
    last = {name: rounds[-1] for name, rounds in seconds.items()}
    return Measured({name: rounds[1:-1] for name, rounds in seconds.items()}, last, turns.products)


def timing(rounds: list[Seconds], stage: str) -> Timing:
    return Timing([seconds[stage] for seconds in rounds])


def show(job: Job, measured: Measured, console: Console) -> None:
    seconds, products = measured.seconds, measured.products
    seconds = {"limit": seconds["limit"], "with attention": products.with_attention(seconds["limit"]), **seconds}
    table = Table("", "sample, s", "update, s", "step, s", "tokens/s", "MiB", "times the limit", "with attention",
                  "TRL takes")  # fmt: skip
    limits = [timing(seconds[name], "step") for name in ("limit", "with attention")]
    for name, rounds in seconds.items():
        whole = timing(rounds, "step")
        stages = [f"{timing(rounds, stage).median_s:.2f}" for stage in ("sample", "update", "step")]
        against = str(timing(seconds["TRL"], "step").over(whole)) if "TRL" in seconds else ""
        rate = f"{job.rows * job.new_tokens / whole.median_s:,.0f}"
        memory = f"{measured.mebibytes[name]['beyond']:.0f}" if name in measured.mebibytes and name != "limit" else ""
        table.add_row(name, *stages, rate, memory, *(str(whole.over(limit)) for limit in limits), against)
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
    """Print EGPO's time relative to the mean of the two GRPO steps of a round."""
    grpo, egpo, again = (timing(seconds[name], "step") for name in ("grpo", "egpo", AGAIN))
    mean = Timing([sum(pair) / 2 for pair in zip(grpo.seconds, again.seconds, strict=True)])
    own = timing(seconds["egpo"], "measure").over(egpo)
    console.print(
        f"An EGPO step takes {precise(egpo.over(mean))} times a GRPO step; one of the two GRPO steps takes "
        f"{precise(again.over(grpo))} times the other. Segments and estimator are {own.median:.2%} of a step."
    )


def take_cores(num_threads: int) -> None:
    """Limit the process to two cores, and let waiting OpenMP threads spin for all contenders, as the command `egpo`
    does. The variable is read when torch is loaded."""
    if "GOMP_SPINCOUNT" not in os.environ:
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {"GOMP_SPINCOUNT": "3000"})
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    torch.set_num_threads(num_threads)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--trl-micro-rows", type=int, default=trl.MICRO_ROWS, help="rows in one of TRL's micro-batches")
    parser.add_argument(
        "--processor-time",
        action="store_true",
        help="measure the processor time of one core instead of wall time, for a machine with other load",
    )
    arguments = parser.parse_args()
    take_cores(1 if arguments.processor_time else CORES)
    if arguments.processor_time:
        time.perf_counter = time.process_time  # for all contenders, TRL and our own stages included
    console = Console(width=140)
    if not trl.is_installed():
        console.print("TRL is not installed: only ours is measured. To install it: make .env-trl/.ready")
    micro_rows = arguments.trl_micro_rows if trl.is_installed() else None
    show(JOB, measure(JOB, arguments.rounds, micro_rows, ("grpo", "egpo", AGAIN)), console)


if __name__ == "__main__":
    main()
