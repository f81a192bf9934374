"""The differences of both engines in losses, gradients and weights, from the same batch and weights, on a CPU or GPU.

    python -m tests.verl.compare_updates --device cuda --out updates.json

needs the packages of `.env-verl` or `environments/verl-gpu`, and no pytest. It prints one table, and writes every
comparison to the JSON file. verl's own training worker takes two steps in each case (`verl_worker.py`); the embedded
engine takes each of them from verl's weights and moments before it. The same is computed in float64: what is as far
from float64 as the engines are from each other is rounding.

The policy ratio of an update compares with old log-probabilities. They are verl's for both engines, or those that each
engine computes from the same weights: in one optimizer step every ratio is then 1.
"""

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version
from math import fsum
from pathlib import Path
from typing import Any

import numpy as np
import torch

from egpo.config.schema import Update
from egpo.verl.dumps import Recorded, read_record
from tests.verl.updates import (
    StepFigures,
    Tensors,
    TrainedState,
    Trainee,
    as_logged,
    differences,
    distance,
    gradient_of,
    logged_figures,
    mini_batches_of,
    settings_of,
)
from tests.verl.verl_worker import BFLOAT16, Device, matmul_error, run_cases

RECORDED = Path(__file__).with_name("recorded")
ACTOR, TEMPERATURE = "actor_rollout_ref.actor", "actor_rollout_ref.rollout.temperature"
FAST = {f"{ACTOR}.optim.lr": 1e-4}
KL = {f"{ACTOR}.use_kl_loss": True, f"{ACTOR}.kl_loss_coef": 0.1}
SEQUENCE_MEAN = {f"{ACTOR}.loss_agg_mode": "seq-mean-token-mean"}
PADDED = {
    "+actor_rollout_ref.model.override_config.attn_implementation": "sdpa",
    "actor_rollout_ref.model.use_remove_padding": False,
}
"""The other cases run without padding, with the plug-in's attention (`egpo.verl.packed_attention`)."""
CASES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "token_mean": (FAST, ["grpo", "egpo"]),
    "sequence_mean_with_kl": ({**FAST, **KL, **SEQUENCE_MEAN}, ["egpo_calibrated", "egpo"]),
    "several_optimizer_steps": (
        {
            **FAST,
            **KL,
            TEMPERATURE: 0.8,
            f"{ACTOR}.ppo_mini_batch_size": 2,
            f"{ACTOR}.kl_loss_type": "kl",
            f"{ACTOR}.entropy_coeff": 0.01,
            f"{ACTOR}.loss_agg_mode": "seq-mean-token-sum-norm",
            f"{ACTOR}.loss_scale_factor": 112,
        },
        ["token_entropy", "egpo_calibrated"],
    ),
    "padded": ({**FAST, **PADDED}, ["grpo", "egpo"]),
    # A group of each batch has no sampled tokens: its environment could not start.
    "rows_without_tokens": ({**FAST, **SEQUENCE_MEAN}, ["grpo-episodes", "egpo-episodes"]),
    "bfloat16": ({**FAST, **BFLOAT16}, ["egpo", "egpo_calibrated"]),
}
"""For each case, what differs from verl's small settings (`verl_worker.SMALL`), and the batch of each step."""
TARGET = 1e-6


def verl_updates(folder: Path, device: Device = "cpu", names: Sequence[str] = tuple(CASES)) -> dict[str, Any]:
    """Return what verl computed in each case, as `verl_worker.run` returns it."""
    paths = {name: (CASES[name][0], [RECORDED / f"{batch}.npz" for batch in CASES[name][1]]) for name in names}
    return run_cases(folder, paths, device)


def steps_of(name: str, computed: Mapping[str, Any]) -> list[tuple[Recorded, dict[str, Any]]]:
    """Return the batches as verl would have recorded them, and what verl computed from each."""
    found = []
    for batch, step in zip(CASES[name][1], computed[name]["steps"], strict=True):
        recorded = read_record(RECORDED / f"{batch}.npz")
        rows = len(recorded.groups)
        about = {**recorded.about, "num_rows": rows, "update": computed[name]["settings"]}
        found.append((replace(recorded, logp_BT=step["logp_BT"].numpy(), row_B=np.arange(rows), about=about), step))
    return found


def dtype_of(name: str) -> str:
    return "bfloat16" if name == "bfloat16" else "float32"


@dataclass(frozen=True, eq=False)
class Outcome:
    """The results of one engine in one step. `metrics`: by verl's names; `length`: see `length_of`."""

    metrics: Mapping[str, Any]
    old_logp_BT: torch.Tensor
    gradient: Tensors
    length: float
    weights: Tensors


def length_of(gradient: Tensors, grad_norm: float, settings: Update) -> float:
    """Return the norm of the gradient before clipping, summed in float64.

    torch sums the squares of a float32 gradient in float32. On a CPU that alone is an error above 1e-6, which both
    engines have in common.
    """
    clipped = fsum(float(one.double().square().sum()) for one in gradient.values()) ** 0.5
    return clipped / (1 - settings.betas[0]) * max(1.0, (grad_norm + 1e-6) / settings.max_grad_norm)


class Engine:
    """A `Trainee` that takes every step of every case from verl's state before it."""

    def __init__(self, dtype: str, device: str) -> None:
        self.trainee = Trainee(dtype=dtype, device=device)
        self.start = self.trainee.state()
        self.size = 0.0

    def outcomes(self, recorded: Recorded, before: TrainedState, step: int) -> tuple[Outcome, Outcome]:
        """Return the outcome with verl's old log-probabilities, and with the engine's own."""
        self.trainee.restore(before, recorded)
        logp_BT = self.trainee.logp(recorded)
        settings, found = settings_of(recorded).update, []
        for old_logp_BT in (None, logp_BT):
            self.trainee.restore(before, recorded)
            figures = self.trainee.take(recorded, step, old_logp_BT)
            after = self.trainee.state()
            gradient = gradient_of(after, before, settings.betas[0])
            length = length_of(gradient, figures.grad_norm, settings)
            found.append(Outcome(as_logged(figures), logp_BT.double().cpu(), gradient, length, after.weights))
            self.size = figures.size
        return found[0], found[1]


@cache
def engine_of(dtype: str, device: str) -> Engine:
    """Return the engine for all cases of a dtype: AdamW has the same settings in each, and begins anew."""
    return Engine(dtype, device)


def compared(name: str, computed: Mapping[str, Any], device: str) -> Iterator[dict[str, Any]]:
    """Yield the comparisons of each step of a case."""
    engine, exact = engine_of(dtype_of(name), device), engine_of("float64", "cpu")
    before = engine.start
    for place, (recorded, step) in enumerate(steps_of(name, computed)):
        num_steps = len(mini_batches_of(recorded))
        after = TrainedState(step["weights"], step["exp_avg"], step["exp_avg_sq"], before.num_steps + num_steps)
        settings = settings_of(recorded).update
        gradient = gradient_of(after, before, settings.betas[0])
        length = length_of(gradient, step["metrics"]["actor/grad_norm"], settings)
        verl = Outcome(step["metrics"], step["logp_BT"].double(), gradient, length, after.weights)
        # Both engines compute with weights that are rounded to bfloat16; their optimizers keep those of float32.
        start = before if dtype_of(name) == "float32" else replace(before, weights=_rounded(before.weights))
        ours, own = engine.outcomes(recorded, before, place + 1)
        exact_same, exact_own = exact.outcomes(recorded, start, place + 1)
        pairs = {
            "embedded, verl": (ours, verl),
            "embedded, verl; old logp of its own": (own, verl),
            "embedded, float64": (ours, exact_same),
            "embedded, float64; old logp of its own": (own, exact_own),
            "verl, float64; old logp of its own": (verl, exact_own),
        }
        about = {"device": device, "case": name, "step": place + 1, "optimizer_steps": num_steps}
        for pair, (one, other) in pairs.items():
            found = _apart(one, other, exact.size, recorded)
            if num_steps == 1:
                found["length"] = abs(one.length / other.length - 1)
            if start is before or "float64" not in pair:
                found["weights"] = distance(one.weights, other.weights, before.weights)
            if pair == "embedded, verl":
                found = {"advantage": _advantages_apart(engine.trainee, recorded), **found}
            yield {**about, "pair": pair, **found}
        before = after


def _rounded(weights: Tensors) -> Tensors:
    return {name: weight.bfloat16().float() for name, weight in weights.items()}


def _apart(one: Outcome, other: Outcome, size: float, recorded: Recorded) -> dict[str, float]:
    """Return the differences of two outcomes, scaled as in `differences`; `logp` is the largest of a token, in nats."""
    figures = StepFigures(**{"kl_loss": None, **logged_figures(one.metrics)}, size=size)
    mask_BT = torch.from_numpy(recorded.mask_BT)
    return {
        **differences(figures, other.metrics),
        "logp": float((one.old_logp_BT - other.old_logp_BT).abs()[mask_BT].max()),
        "gradient": distance(one.gradient, other.gradient),
    }


def _advantages_apart(trainee: Trainee, recorded: Recorded) -> float:
    ours, mask_BT = trainee.advantage(recorded), torch.from_numpy(recorded.mask_BT)
    ours_BT = (ours if ours.ndim == 2 else ours.unsqueeze(1).expand_as(mask_BT)).cpu()
    return float((ours_BT.double() - torch.from_numpy(recorded.advantage_BT)).abs()[mask_BT].max())


QUANTITIES = ("advantage", "loss", "pg_loss", "kl_loss", "grad_norm", "length", "logp", "gradient", "weights")


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a table with the largest difference of each pair and case over its steps. The last line is the target."""
    pairs, cases = ([*dict.fromkeys(row[name] for row in rows)] for name in ("pair", "case"))
    keys = {(row["pair"], row["case"], row["device"]) for row in rows}
    lines = [("pair", "case", "device", *QUANTITIES)]
    for key in sorted(keys, key=lambda key: (pairs.index(key[0]), cases.index(key[1]), key[2])):
        here = [row for row in rows if (row["pair"], row["case"], row["device"]) == key]
        largest = (max((row[name] for row in here if name in row), default=None) for name in QUANTITIES)
        lines.append((*key, *("" if one is None else f"{one:.1e}" for one in largest)))
    lines.append(("target", "float32", "", *[f"{TARGET:.0e}"] * 6, "", "", ""))
    widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]))]
    return "\n".join("  ".join(one.ljust(width) for one, width in zip(line, widths, strict=True)) for line in lines)


def machine_of(device: str) -> dict[str, Any]:
    """Return the device and the versions. `matmul_error`: see `verl_worker`."""
    packages = {name: version(name) for name in ("torch", "transformers", "verl")}
    name = torch.cuda.get_device_name() if device == "cuda" else platform.machine()
    return {"device": device, "name": name, **packages, "matmul_error": matmul_error(device)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--case", action="append", choices=tuple(CASES), help="default: all; may be repeated")
    parser.add_argument("--out", type=Path, help="JSON file of all comparisons")
    parser.add_argument("--beside", type=Path, help="an earlier JSON file, for the same table")
    given = parser.parse_args()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        computed = verl_updates(Path(folder), given.device, given.case or tuple(CASES))
    print(f"verl: {time.monotonic() - begun:.0f} s", flush=True)
    report: dict[str, Any] = {"machine": machine_of(given.device), "comparisons": []}
    report["machine"]["verl_matmul_error"] = max(one["matmul_error"] for one in computed.values())
    print(json.dumps(report["machine"]), flush=True)
    for name in computed:
        report["comparisons"] += compared(name, computed, given.device)
        # Written after each case, so that a failure keeps the cases before it.
        if given.out:
            given.out.write_text(json.dumps(report, indent=1) + "\n")
        print(f"{name}: {time.monotonic() - begun:.0f} s", flush=True)
    earlier = json.loads(given.beside.read_text())["comparisons"] if given.beside else []
    print(table([*earlier, *report["comparisons"]]))


if __name__ == "__main__":
    main()
