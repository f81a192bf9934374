"""Measure what `rollout.alternatives` costs: sampling with and without it, in turn, and the dump of the responses.

    python benchmarks/alternatives.py [--device cuda] [--model egpo-tiny] [--alternatives 5] [--rounds 9]

The job is one step of the recipe countdown_tiny: the same problems and draws in every round. It prints the sampling
and the whole step in seconds, the added time as a fraction of each (median and quartiles of the ratios within a
round), and the bytes of the dump. On a CPU the time is that of the process on all cores, not of the clock: other
processes then do not count. A training records alternatives only in the steps whose rollouts it writes.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from rich.console import Console
from rich.table import Table

from egpo.config import Config, load_config
from egpo.local.run import open_run
from egpo.local.step import StepOutcome, step
from egpo.local.training.rl_session import rollout_records
from egpo.runs.dump import write_dump
from egpo.segments.tags import TokenTexts
from interleaved import Timing

RECIPE = "countdown_tiny"


def main() -> None:
    arguments = read_arguments()
    clock = time.process_time if arguments.device == "cpu" else device_clock
    with TemporaryDirectory() as folder:
        contenders = {name: job(arguments, count, Path(folder)) for name, count in counts(arguments).items()}
        timings = measure(contenders, arguments.rounds, clock)
        sizes = {name: path.stat().st_size for name in contenders if (path := Path(folder) / f"{name}.jsonl").is_file()}
    show(timings, sizes, arguments)


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--model", default="egpo-tiny", help="a model of the package, or a model folder")
    parser.add_argument("--alternatives", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=9)
    return parser.parse_args()


def counts(arguments: argparse.Namespace) -> dict[str, int]:
    return {"without": 0, "with": arguments.alternatives}


def job(arguments: argparse.Namespace, count: int, folder: Path) -> Callable[[], dict[str, float]]:
    """Return a function that takes the first step of a new run, writes its dump, and returns seconds by stage."""
    overrides = [f"rollout.alternatives={count}", f"model.path={arguments.model}", f"model.device={arguments.device}"]
    config: Config = load_config(RECIPE, [*overrides, "validation.every=0"])
    run = open_run(config)
    texts, name = TokenTexts(run.policy.tokenizer), "with" if count else "without"

    def take() -> dict[str, float]:
        position = run.stream.position
        outcome: StepOutcome = step(run, 0)
        run.stream.position = position
        seconds = run.stages.take()
        start = time.process_time()
        write_dump(folder / f"{name}.jsonl", rollout_records(run, outcome, 1, texts))
        return seconds | {"dump": time.process_time() - start}

    return take


def measure(
    contenders: dict[str, Callable[[], dict[str, float]]], rounds: int, clock: Callable[[], float]
) -> dict[str, dict[str, Timing]]:
    """Return the time of the sampling, of the dump and of the whole step, by contender."""
    found: dict[str, dict[str, list[float]]] = {name: {} for name in contenders}
    original, time.perf_counter = time.perf_counter, clock  # the stages of a step are timed by this function
    try:
        for turn in range(rounds + 1):
            # Every other round in the other order: the first of two pays for caches that the second finds warm.
            for name in list(contenders)[:: 1 if turn % 2 else -1]:
                start = clock()
                stages = contenders[name]()
                whole = clock() - start
                if turn:
                    for stage, seconds in {"sample": stages["sample"], "dump": stages["dump"], "step": whole}.items():
                        found[name].setdefault(stage, []).append(seconds)
    finally:
        time.perf_counter = original
    return {name: {stage: Timing(values) for stage, values in stages.items()} for name, stages in found.items()}


def device_clock() -> float:
    torch.cuda.synchronize()
    return time.monotonic()


def show(timings: dict[str, dict[str, Timing]], sizes: dict[str, int], arguments: argparse.Namespace) -> None:
    table = Table("stage", "without, s", "with, s", "with / without (quartiles)")
    for stage in ("sample", "dump", "step"):
        one, other = timings["without"][stage], timings["with"][stage]
        ratios = other.over(one).values
        low, middle, high = statistics.quantiles(ratios, n=4)
        table.add_row(stage, f"{one.median_s:.3f}", f"{other.median_s:.3f}", f"{middle:.3f} ({low:.3f} to {high:.3f})")
    console = Console(file=sys.stdout)
    console.print(f"{arguments.model} on {arguments.device}, {arguments.alternatives} alternatives")
    console.print(table)
    console.print(f"dump: {sizes['without']:,} bytes without, {sizes['with']:,} with")


if __name__ == "__main__":
    main()
