"""`make soak`: a training of up to 20,000 steps of the smallest useful batch, and what it leaves behind.

    python -m tests.faults.soak [--steps 20000] [--minutes 15] [--folder build/soak]

Each step has 2 problems x 4 responses of at most 24 tokens from `egpo-tiny`, with checkpoints, retention and
validation. It stops after `--minutes`, or at Ctrl-C, after saving; the same command continues. At the end, and with
`--only-figures` at any time, it prints the slope of resident memory and of CPU time per step over the steps that ran,
the number of files, and whether the metrics can be read to their end.
"""

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean

from egpo.config import load_config
from egpo.errors import RunInterruptedError
from egpo.local.train import train
from egpo.runs.folder import RunFolder
from egpo.runs.stored import StoredRun

RECIPE = """
name: soak
steps: {steps}
runs: {folder}
model: {{path: egpo-tiny, device: cpu}}
task: {{name: countdown, settings: {{mode: binary, min_numbers: 3, max_numbers: 3, max_number: 12, max_target: 60,
  prompt_format: "Make {{target}} from {{numbers}}.", train: 1024, test: 16}}}}
rollout: {{prompts: 2, n: 4, max_response_tokens: 24}}
algorithm: {{estimator: egpo_calibrated}}
update: {{lr: 1.0e-6}}
checkpoints: {{every: 100, keep_last: 2, keep_best: 1}}
validation: {{every: 200, problems: 4}}
watch: {{rollouts_every: 100}}
"""
WARM_UP = 200
"""Steps of each process that are left out of the slopes: allocators and caches fill during them."""
BLOCKS = 20
"""Values of neighbouring steps are not independent: the slope is fitted to the means of this many blocks of steps."""
MEMORY = "memory.jsonl"


@dataclass(frozen=True)
class Slope:
    """Change for each 1,000 steps by least squares over means of blocks, with its 95 % interval."""

    value: float
    low: float
    high: float
    num_steps: int


def slope_of(steps: Sequence[int], values: Sequence[float], num_blocks: int = BLOCKS) -> Slope:
    """Fit a line to the means of `num_blocks` blocks of neighbouring steps. At least three values for each block."""
    from egpo.comparisons.outcome import t_quantile

    cuts = [round(part * len(steps) / num_blocks) for part in range(num_blocks + 1)]
    blocks = [slice(start, end) for start, end in pairwise(cuts)]
    x, y = [fmean(steps[block]) for block in blocks], [fmean(values[block]) for block in blocks]
    centre, mean = fmean(x), fmean(y)
    spread = sum((one - centre) ** 2 for one in x)
    slope = sum((a - centre) * (b - mean) for a, b in zip(x, y, strict=True)) / spread
    residual = sum((b - mean - slope * (a - centre)) ** 2 for a, b in zip(x, y, strict=True))
    reach = t_quantile(0.975, num_blocks - 2) * math.sqrt(residual / (num_blocks - 2) / spread)
    return Slope(1000 * slope, 1000 * (slope - reach), 1000 * (slope + reach), len(steps))


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def soak(folder: Path, steps: int, minutes: float) -> None:
    """Train, or continue to train, and write resident memory and number of files after each step to `memory.jsonl`."""
    folder.mkdir(parents=True, exist_ok=True)
    recipe = folder / "recipe.yaml"
    recipe.write_text(RECIPE.format(steps=steps, folder=folder))
    run, deadline = RunFolder(folder / "soak"), time.monotonic() + 60 * minutes
    with (folder / MEMORY).open("a", buffering=1) as memory:

        def after_step(report):
            line = {"process": os.getpid(), "step": report.step, "bytes": resident_bytes()}
            line |= {"cpu_s": time.process_time(), "wall_s": report.timings["timing_s/step"]}
            if report.step % 50 == 0:
                line["files"] = sum(len(names) for _, _, names in os.walk(run.path))
            memory.write(json.dumps(line) + "\n")
            return time.monotonic() > deadline

        train(load_config(recipe), resume=run.config.is_file(), on_step=after_step, quiet=True)


def processes(folder: Path) -> list[list[dict]]:
    """Return the lines of `memory.jsonl` by process, without the warm-up of each."""
    found: dict[int, list[dict]] = {}
    for text in (folder / MEMORY).read_text().splitlines():
        line = json.loads(text)
        found.setdefault(line["process"], []).append(line)
    return [lines[WARM_UP:] for lines in found.values()]


def figures(folder: Path) -> Iterator[str]:
    """Yield the lines that `make soak` prints."""
    run = StoredRun.at(folder / "soak")
    steps = [line["step"] for line in run.metrics]
    yield f"steps: {run.last_step:,} of {run.planned_steps:,}, by {len(processes(folder))} processes"
    whole = steps == list(range(run.last_step + 1))
    yield f"metrics: {len(steps):,} lines, {'every step once' if whole else 'STEPS ARE MISSING OR TWICE'}"
    for lines in processes(folder):
        if len(lines) < 3 * BLOCKS:
            yield f"a process with {len(lines) + WARM_UP} steps or fewer: too few for a slope"
            continue
        numbers, megabytes = [line["step"] for line in lines], [line["bytes"] / 1e6 for line in lines]
        memory = slope_of(numbers, megabytes)
        yield (
            f"steps {numbers[0]:,} to {numbers[-1]:,}: resident memory {megabytes[0]:.1f} MB at first, "
            f"{megabytes[-1]:.1f} MB at last, {max(megabytes):.1f} MB at most; per 1,000 steps {memory.value:+.3f} MB "
            f"(95 % interval {memory.low:+.3f} to {memory.high:+.3f})"
        )
        if all("cpu_s" in line for line in lines):  # of the process: other processes make a step longer by the clock
            spent = [1e3 * (after["cpu_s"] - before["cpu_s"]) for before, after in pairwise(lines)]
            slope = slope_of(numbers[1:], spent)
            yield (
                f"    CPU time of a step {fmean(spent):.1f} ms; per 1,000 steps {slope.value:+.2f} ms "
                f"({slope.low:+.2f} to {slope.high:+.2f})"
            )
    counted = [line["files"] for lines in processes(folder) for line in lines if "files" in line]
    rollouts = len(run.rollout_steps)
    if counted:
        yield (
            f"files in the run folder: {max(counted)} at most, of them {rollouts} of rollouts (one per 100 steps); "
            f"checkpoints: {len(run.checkpoints)} (steps {', '.join(map(str, run.checkpoints))})"
        )


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--steps", type=int, default=20_000)
    arguments.add_argument("--minutes", type=float, default=math.inf)
    arguments.add_argument("--folder", type=Path, default=Path("build/soak"))
    arguments.add_argument("--only-figures", action="store_true")
    chosen = arguments.parse_args()
    code = 0
    if not chosen.only_figures:
        try:
            soak(chosen.folder, chosen.steps, chosen.minutes)
        except RunInterruptedError as error:
            print(f"stopped and saved; `make soak` continues ({error})", file=sys.stderr)
            code = error.exit_code
    print(*figures(chosen.folder), sep="\n")
    sys.exit(code)


if __name__ == "__main__":
    main()
