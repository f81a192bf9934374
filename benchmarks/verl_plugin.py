"""Measure what the plug-in adds to verl's step: the advantage stage with and without it, in one run of verl on a CPU.

    make verl
    python benchmarks/verl_plugin.py [--steps 12] [--prompts 16] [--samples 8]

In every step the stage runs twice on the same batch: verl's own with GRPO, and the plug-in with EGPO (fetch entropy,
tokens and correctness, find segments, compute metrics). The first step, which builds tables, is left out.
"""

import argparse
import importlib.util
import os
import statistics
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
VERL_PYTHON = HERE.parent / ".env-verl" / "bin" / "python"
sys.path.insert(0, str(HERE.parent))

from egpo.verl.cpu.launch_settings import ENVIRONMENT  # noqa: E402
from tests.verl.live import ONE_CALL, model_that_opens_the_tag, run_verl, write_data  # noqa: E402


def run(folder, steps, prompts, samples):
    modules = {
        "VERL_USE_EXTERNAL_MODULES": f"{ENVIRONMENT['VERL_USE_EXTERNAL_MODULES']},_verl_stage",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")])),
    }
    return run_verl(
        folder,
        data=write_data(folder / "data", "function_calling", train=steps * prompts, **ONE_CALL),
        model=model_that_opens_the_tag(folder / "model"),
        steps=steps,
        environment=modules,
        algorithm__adv_estimator="egpo",
        data__train_batch_size=prompts,
        actor_rollout_ref__actor__ppo_mini_batch_size=prompts,
        actor_rollout_ref__rollout__n=samples,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--samples", type=int, default=8)
    arguments = parser.parse_args()
    if importlib.util.find_spec("verl") is None:
        if not VERL_PYTHON.exists():
            print("verl is not installed. To install it: make verl")
            return
        os.execv(VERL_PYTHON, [str(VERL_PYTHON), *sys.argv])
    with tempfile.TemporaryDirectory() as folder:
        done = run(Path(folder), arguments.steps, arguments.prompts, arguments.samples)
    if done.exit_code:
        sys.exit(done.log[-4000:])
    show(done.metrics[1:], arguments)


def show(steps, arguments):
    stock, plugin = ([step[f"benchmark/{name}_s"] for step in steps] for name in ("stock", "plugin"))
    added = [with_it - without for with_it, without in zip(plugin, stock, strict=True)]
    # The time of a step without the second run of the stage.
    whole = [step["timing_s/step"] - one for step, one in zip(steps, stock, strict=True)]
    shares = [100 * one / step for one, step in zip(added, whole, strict=True)]
    rows = f"{arguments.prompts} x {arguments.samples} responses"
    table = Table(title=f"{rows}, {len(steps)} steps, medians (quartiles)", title_justify="left")
    for heading in ("stage without, ms", "with, ms", "added, ms", "step, s", "added, % of the step"):
        table.add_column(heading, justify="right")
    table.add_row(*(_spread(values, scale) for values, scale in
                    ((stock, 1e3), (plugin, 1e3), (added, 1e3), (whole, 1), (shares, 1))))  # fmt: skip
    Console().print(table)


def _spread(values, scale):
    low, middle, high = (scale * value for value in statistics.quantiles(values, n=4))
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


if __name__ == "__main__":
    main()
