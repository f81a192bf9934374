"""Measure what each method of the board adds to a training step of GRPO.

    python benchmarks/methods.py [--device cuda] [--recipe countdown_tiny] [--model egpo-tiny] [--rounds 15]

One batch is sampled, and every other response is taken for correct: so every group has a signal, and all methods but
those that drop responses train on the same rows. Every method then measures, estimates and updates on it in turn, from
the same weights, in four optimizer steps as on the board. Printed are the rows that a method trains on, and the added
time as a fraction of the whole step of GRPO, sampling included (median and quartiles over the rounds, each against GRPO
in the same round). On a CPU the time is that of the process on all cores, not of the clock: other processes then do not
count. Not here: `dapo`, whose cost is the sampling of groups in the place of others.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import egpo.local.step as one_step
from egpo.config import load_config
from egpo.local.collect import Batch, collect
from egpo.local.measure import estimate, measure
from egpo.local.run import Run, open_run
from egpo.local.updates.optimizer import Optimizer
from egpo.local.updates.update import UpdateSettings
from egpo.methods import METHODS

LEFT_OUT = ("dapo",)


def main() -> None:
    arguments = read_arguments()
    clock = time.process_time if arguments.device == "cpu" else device_clock
    runs = opened(arguments)
    run = runs["grpo"]
    collect(run, 0)  # compiles and warms up
    start = clock()
    batch = with_signal(collect(run, 0))
    sampling_s = clock() - start
    rows = {name: trained_rows(run, batch) for name, run in runs.items()}
    seconds = measured(runs, batch, arguments.rounds, clock)
    show(seconds, rows, sampling_s, arguments)


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--recipe", default="countdown_tiny")
    parser.add_argument("--model", default="egpo-tiny", help="a model of the package, or a model folder")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--methods", nargs="*", help="these alone; default: all")
    return parser.parse_args()


def opened(arguments: argparse.Namespace) -> dict[str, Run]:
    """Return a run of each method. All share one policy and one stream of problems."""
    shared = [f"model.path={arguments.model}", f"model.device={arguments.device}", "validation.every=0"]
    grpo = open_run(load_config(arguments.recipe, [*shared, *words("grpo"), "update.mini_batch=4"]))
    runs = {"grpo": grpo}
    for name in arguments.methods or [name for name in METHODS if name not in LEFT_OUT]:
        config = load_config(arguments.recipe, [*shared, *words("grpo"), *words(name), "update.mini_batch=4"])
        weights = list(grpo.policy.model.named_parameters())
        optimizer = Optimizer(weights, config.update)
        runs[name] = replace(grpo, config=config, settings=UpdateSettings.of(config), optimizer=optimizer)
    return runs


def words(name: str) -> list[str]:
    return [f"{key}={json.dumps(value)}" for key, value in METHODS[name].settings.items()]


def measured(runs: dict[str, Run], batch: Batch, rounds: int, clock: Callable[[], float]) -> dict[str, list[float]]:
    """Return the seconds of the step after sampling, by method, in each round."""
    policy = runs["grpo"].policy
    weights = {name: weight.clone() for name, weight in policy.model.state_dict().items()}
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    with sampled_before(batch):
        for turn in range(rounds + 1):
            # Every other round in the other order: what a method leaves warm would always serve the same next one.
            for name in list(runs)[:: 1 if turn % 2 else -1]:
                policy.model.load_state_dict(weights)
                start = clock()
                one_step.step(runs[name], 0)
                if turn:
                    seconds[name].append(clock() - start)
    return seconds


def with_signal(batch: Batch) -> Batch:
    reward_B = (torch.arange(len(batch.reward_B)) % 2).to(batch.reward_B)
    all_B = torch.ones_like(batch.kept_B)
    return replace(batch, reward_B=reward_B, random_B=reward_B, kept_B=all_B, constant_B=~all_B)


def trained_rows(run: Run, batch: Batch) -> int:
    measures = measure(run.policy, batch.rollouts, run.config.segments.tags)
    return len(estimate(batch, measures, run.config.algorithm).rows)


@contextmanager
def sampled_before(batch: Batch) -> Iterator[None]:
    """Let a step take `batch` and sample nothing."""
    original: Any = one_step.collect
    one_step.collect = lambda run, number: batch
    try:
        yield
    finally:
        one_step.collect = original


def device_clock() -> float:
    torch.cuda.synchronize()
    return time.monotonic()


def show(
    seconds: dict[str, list[float]], rows: dict[str, int], sampling_s: float, arguments: argparse.Namespace
) -> None:
    whole_s = sampling_s + statistics.median(seconds["grpo"])
    table = Table("method", "rows", "update, s", "added to a step, % (quartiles)")
    for name, values in seconds.items():
        added = [100 * (a - b) / whole_s for a, b in zip(values, seconds["grpo"], strict=True)]
        low, middle, high = statistics.quantiles(added, n=4)
        table.add_row(
            name, str(rows[name]), f"{statistics.median(values):.4f}", f"{middle:+.2f} ({low:+.2f} to {high:+.2f})"
        )
    console = Console(file=sys.stdout)
    console.print(f"{arguments.recipe}, {arguments.model} on {arguments.device}: a step of GRPO takes {whole_s:.3f} s")
    console.print(table)


if __name__ == "__main__":
    main()
